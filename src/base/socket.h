/* Whole messages over a connected socket, however it cuts them. */
#ifndef TESSERA_BASE_SOCKET_H
#define TESSERA_BASE_SOCKET_H

#include <stdbool.h>
#include <stddef.h>

/* False if the other side is closed. No SIGPIPE. */
bool socket_send(int fd, const void *bytes, size_t count);

/* False if the other side is closed, or `seconds` have passed; 0: without a limit, but for SO_RCVTIMEO. */
bool socket_receive(int fd, void *bytes, size_t count, double seconds);

/* Waits until one of `events` (POLLIN, POLLOUT) or an error is there. False if none is there at `deadline`,
   a time of clock_seconds; one that is counts, however late this process looks. */
bool socket_wait(int fd, short events, double deadline);

/* The deadline of a wait of so many seconds; 0: never. */
double socket_deadline(double seconds);

#endif
