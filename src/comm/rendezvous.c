#define _GNU_SOURCE
#include "src/comm/rendezvous.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "src/base/profile.h"
#include "src/base/socket.h"
#include "src/base/text.h"

static const char MAGIC[8] = "TESSERA1", ANSWER[sizeof MAGIC] = "TESSERA2";
static const double ANSWER_SECONDS = 1, RETRY_SECONDS = 0.05;

/* What a connecting process says first. The other side answers with ANSWER, and so does it in turn: one that
   has given up waiting is not taken for connected. ANSWER differs from MAGIC, because TCP can connect a
   socket to itself: if no process listens at a port, the kernel may choose this port as the source port of
   the connection. The socket then receives its own MAGIC. */
struct hello {
    char magic[sizeof MAGIC];
    uint64_t job;
    int32_t rank, size, port; /* at which it listens */
};

/* --- sockets --- */

static void set_options(int fd) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* a sum must not wait for the next one */
}

/* -1 if the port is taken. Both families in one socket where IPv6 is there. */
static int listen_at(int port, bool local) {
    const int on = 1, off = 0;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    four.sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
    int fd = local ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool both = fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) == 0;
    if (!both && fd >= 0) close(fd);
    if (!both) fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    const struct sockaddr *address = both ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    if (bind(fd, address, both ? sizeof six : sizeof four) == 0 && listen(fd, SOMAXCONN) == 0) return fd;
    close(fd);
    return -1;
}

static int port_of(int listener) {
    struct sockaddr_storage address;
    socklen_t size = sizeof address;
    if (getsockname(listener, (struct sockaddr *)&address, &size) != 0) return 0;
    return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
                                               : ((struct sockaddr_in *)&address)->sin_port);
}

/* The address of the other side, an IPv4 one as ::ffff:a.b.c.d, with this port; 0: with that of the
   connection. */
static struct sockaddr_in6 peer_of(int fd, int port) {
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    getpeername(fd, (struct sockaddr *)&from, &size);
    if (from.ss_family == AF_INET6) {
        six = *(struct sockaddr_in6 *)&from;
    } else {
        const struct sockaddr_in *four = (struct sockaddr_in *)&from;
        six.sin6_addr.s6_addr[10] = six.sin6_addr.s6_addr[11] = 0xff;
        memcpy(six.sin6_addr.s6_addr + 12, &four->sin_addr, 4);
        six.sin6_port = four->sin_port;
    }
    if (port) six.sin6_port = htons((uint16_t)port);
    return six;
}

/* Returns the connection; -1 if there is no answer before the deadline. */
static int connect_to(const struct sockaddr *address, socklen_t size, double deadline) {
    const int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    int error = 0;
    socklen_t length = sizeof error;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* its own port is not kept from rank 0 */
    const bool begun = connect(fd, address, size) == 0 || errno == EINPROGRESS;
    if (begun && socket_wait(fd, POLLOUT, deadline) &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && !error &&
        fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK) == 0) {
        set_options(fd);
        return fd;
    }
    close(fd);
    return -1;
}

/* An address of rendezvous->listens; where IPv6 is missing, by IPv4. */
static int connect_to_rank(const struct sockaddr_in6 *six, double deadline) {
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = six->sin6_port};
    if (!IN6_IS_ADDR_V4MAPPED(&six->sin6_addr))
        return connect_to((const struct sockaddr *)six, sizeof *six, deadline);
    memcpy(&four.sin_addr, six->sin6_addr.s6_addr + 12, 4);
    return connect_to((const struct sockaddr *)&four, sizeof four, deadline);
}

/* --- greetings --- */

static struct hello hello_of(const struct rendezvous *rendezvous) {
    struct hello hello = {.job = rendezvous->job,
                          .rank = rendezvous->rank,
                          .size = rendezvous->size,
                          .port = port_of(rendezvous->listener)};
    memcpy(hello.magic, MAGIC, sizeof MAGIC);
    return hello;
}

static bool receive_answer(int fd, double deadline) {
    char answer[sizeof ANSWER];
    return socket_wait(fd, POLLIN, deadline) && socket_receive(fd, answer, sizeof answer, ANSWER_SECONDS) &&
           memcmp(answer, ANSWER, sizeof ANSWER) == 0;
}

/* A greeting of this job; another one is that of a stranger. A rank of this job, however slow it is, then
   answers or closes the connection: both sides agree whether they are connected. */
static bool receive_hello(const struct rendezvous *rendezvous, int fd, struct hello *hello, double deadline) {
    return socket_receive(fd, hello, sizeof *hello, ANSWER_SECONDS) &&
           memcmp(hello->magic, MAGIC, sizeof MAGIC) == 0 && hello->job == rendezvous->job &&
           hello->size == rendezvous->size && hello->rank > 0 && hello->rank != rendezvous->rank &&
           hello->rank < rendezvous->size && socket_send(fd, ANSWER, sizeof ANSWER) &&
           receive_answer(fd, deadline);
}

/* Waits for the next try; false after the deadline. */
static bool try_again(double deadline) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * RETRY_SECONDS)}, NULL);
    return clock_seconds() < deadline;
}

/* Returns fd if the other side is of this job, else closes it and returns -1. */
static int greet(const struct rendezvous *rendezvous, int fd, double deadline) {
    const struct hello hello = hello_of(rendezvous);
    if (fd >= 0 && socket_send(fd, &hello, sizeof hello) && receive_answer(fd, deadline) &&
        socket_send(fd, ANSWER, sizeof ANSWER))
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* Waits for connections of ranks of which link[] is -1, in `link`. */
static bool accept_ranks(const struct rendezvous *rendezvous, int *link, struct sockaddr_in6 *listens,
                         int count, double deadline) {
    while (count > 0) {
        struct hello hello;
        if (!socket_wait(rendezvous->listener, POLLIN, deadline)) return false;
        const int fd = accept4(rendezvous->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0 && errno != EINTR && errno != ECONNABORTED) return false;
        if (fd < 0) continue;
        if (!receive_hello(rendezvous, fd, &hello, deadline) || link[hello.rank] >= 0) {
            close(fd);
            continue;
        }
        set_options(fd);
        link[hello.rank] = fd;
        if (listens) listens[hello.rank] = peer_of(fd, hello.port);
        count--;
    }
    return true;
}

/* --- the rendezvous --- */

enum status rendezvous_open(struct rendezvous *rendezvous) {
    const size_t size = (size_t)rendezvous->size;
    rendezvous->listener = -1;
    rendezvous->link = malloc(size * sizeof *rendezvous->link);
    rendezvous->listens = calloc(size, sizeof *rendezvous->listens);
    if (!rendezvous->link || !rendezvous->listens) return status_set(STATUS_FAILED, "out of memory");
    for (size_t r = 0; r < size; r++) rendezvous->link[r] = -1;
    return STATUS_OK;
}

enum status rendezvous_listen(struct rendezvous *rendezvous, int port, bool local) {
    const int tries = rendezvous->rank == 0 && port ? RENDEZVOUS_PORTS : 1;
    for (int i = 0; i < tries && port + i < 65536 && rendezvous->listener < 0; i++)
        rendezvous->listener = listen_at(port ? port + i : 0, local);
    if (rendezvous->listener < 0)
        return status_set(STATUS_FAILED, "cannot listen at port %d, nor at the next %d: %s", port, tries - 1,
                          strerror(errno));
    rendezvous->port = port_of(rendezvous->listener);
    return STATUS_OK;
}

void rendezvous_stop_listening(struct rendezvous *rendezvous) {
    if (rendezvous->listener >= 0) close(rendezvous->listener);
    rendezvous->listener = -1;
}

/* "rank 3 of 4 has not .. within", "ranks 1, 2 and 3 of 4 have not .. within". */
static enum status missing_ranks(const struct rendezvous *rendezvous, const int *link, const char *what,
                                 int number, double seconds) {
    char list[256] = "";
    int count = 0, last = 0;
    for (int r = 0; r < rendezvous->size; r++) {
        if (r == rendezvous->rank || link[r] >= 0) continue;
        if (count++) text_append(list, sizeof list, "%s%d", count > 2 ? ", " : "", last);
        last = r;
    }
    text_append(list, sizeof list, "%s%d", count > 1 ? " and " : "", last);
    return status_set(STATUS_FAILED,
                      "rank%s %s of %d ha%s not %s %d within %g s (--comm-timeout); --comm none trains alone",
                      count > 1 ? "s" : "", list, rendezvous->size, count > 1 ? "ve" : "s", what, number,
                      seconds);
}

enum status rendezvous_wait(struct rendezvous *rendezvous, double seconds) {
    const size_t bytes = (size_t)rendezvous->size * sizeof *rendezvous->listens;
    const bool met = accept_ranks(rendezvous, rendezvous->link, rendezvous->listens, rendezvous->size - 1,
                                  socket_deadline(seconds));
    if (!met) memset(rendezvous->listens, 0xff, bytes); /* the others need not say it, too */
    for (int r = 1; r < rendezvous->size; r++)          /* the watch finds out which have ended */
        if (rendezvous->link[r] >= 0) socket_send(rendezvous->link[r], rendezvous->listens, bytes);
    return met ? STATUS_OK
               : missing_ranks(rendezvous, rendezvous->link, "come to port", rendezvous->port, seconds);
}

/* One try at each address and port. */
static int find_rank_0(const struct rendezvous *rendezvous, const struct addrinfo *list, int ports) {
    for (const struct addrinfo *at = list; at; at = at->ai_next)
        for (int p = 0; p < ports && rendezvous->port + p < 65536; p++) {
            const uint16_t port = htons((uint16_t)(rendezvous->port + p));
            if (at->ai_family == AF_INET6) ((struct sockaddr_in6 *)at->ai_addr)->sin6_port = port;
            if (at->ai_family == AF_INET) ((struct sockaddr_in *)at->ai_addr)->sin_port = port;
            const double until = clock_seconds() + ANSWER_SECONDS;
            const int fd = greet(rendezvous, connect_to(at->ai_addr, at->ai_addrlen, until), until);
            if (fd >= 0) return fd;
        }
    return -1;
}

enum status rendezvous_join(struct rendezvous *rendezvous, const char *address, int ports, double seconds) {
    const struct addrinfo wanted = {.ai_socktype = SOCK_STREAM};
    const size_t bytes = (size_t)rendezvous->size * sizeof *rendezvous->listens;
    const double deadline = socket_deadline(seconds), patience = seconds > 0 ? 2 * seconds : 0;
    struct addrinfo *list;
    const int error = getaddrinfo(address, NULL, &wanted, &list);
    if (error)
        return status_set(STATUS_FAILED, "the address of rank 0, '%s' (MASTER_ADDR), is not known: %s",
                          address, gai_strerror(error));
    while ((rendezvous->link[0] = find_rank_0(rendezvous, list, ports)) < 0 && try_again(deadline)) continue;
    freeaddrinfo(list);
    if (rendezvous->link[0] < 0)
        return status_set(STATUS_FAILED,
                          "rank 0 does not answer at %s, port %d, within %g s (--comm-timeout)", address,
                          rendezvous->port, seconds);
    if (!socket_receive(rendezvous->link[0], rendezvous->listens, bytes, patience))
        return status_set(STATUS_FAILED, "rank 0 of %d: its process has ended, or is stopped",
                          rendezvous->size);
    if (rendezvous->listens[0].sin6_family == UINT16_MAX) return status_set(STATUS_FAILED, "%s", "");
    rendezvous->listens[0] = peer_of(rendezvous->link[0], 0);
    return STATUS_OK;
}

int *rendezvous_connect_all(struct rendezvous *rendezvous, double seconds) {
    const int rank = rendezvous->rank, size = rendezvous->size;
    const double deadline = socket_deadline(seconds);
    int *pairs = malloc((size_t)size * sizeof *pairs);
    bool met = true;
    if (!pairs) return status_write("out of memory"), NULL;
    for (int r = 0; r < size; r++) pairs[r] = -1;
    for (int r = 0; r < rank; r++) {
        const struct sockaddr_in6 *six = &rendezvous->listens[r];
        while ((pairs[r] = greet(rendezvous, connect_to_rank(six, deadline), deadline)) < 0 &&
               try_again(deadline))
            continue;
        met &= pairs[r] >= 0;
    }
    met &= accept_ranks(rendezvous, pairs, NULL, size - 1 - rank, deadline);
    if (met) return pairs;
    missing_ranks(rendezvous, pairs, "connected to rank", rank, seconds);
    free(pairs);
    return NULL;
}

void rendezvous_close(struct rendezvous *rendezvous) {
    if (rendezvous->listener >= 0) close(rendezvous->listener);
    for (int r = 0; rendezvous->link && r < rendezvous->size; r++)
        if (rendezvous->link[r] >= 0) close(rendezvous->link[r]);
    free(rendezvous->link);
    free(rendezvous->listens);
    *rendezvous = (struct rendezvous){.listener = -1};
}
