/* Creates the file of the environment variable TESSERA_TEST_MARK as soon as it is loaded. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((constructor)) static void mark(void) {
    const char *path = getenv("TESSERA_TEST_MARK");
    const int fd = path ? open(path, O_WRONLY | O_CREAT, 0666) : -1;
    if (fd >= 0) close(fd);
}
