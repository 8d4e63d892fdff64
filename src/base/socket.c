#include "src/base/socket.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>

#include "src/base/profile.h"

double socket_deadline(double seconds) {
    return seconds > 0 ? clock_seconds() + seconds : 1e300;
}

bool socket_wait(int fd, short events, double deadline) {
    for (;;) {
        const double left = deadline - clock_seconds();
        struct pollfd one = {.fd = fd, .events = events};
        const int ready = poll(&one, 1, left <= 0 ? 0 : left < 60 ? (int)(1000 * left) + 1 : 60000);
        if (ready > 0) return true;
        if (left <= 0 || (ready < 0 && errno != EINTR)) return false;
    }
}

bool socket_send(int fd, const void *bytes, size_t count) {
    for (const char *at = bytes; count;) {
        const ssize_t sent = send(fd, at, count, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) return false;
        at += sent;
        count -= (size_t)sent;
    }
    return true;
}

bool socket_receive(int fd, void *bytes, size_t count, double seconds) {
    const double deadline = socket_deadline(seconds);
    for (char *at = bytes; count;) {
        if (seconds > 0 && !socket_wait(fd, POLLIN, deadline)) return false;
        const ssize_t got = recv(fd, at, count, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        count -= (size_t)got;
    }
    return true;
}
