/* A number that the test writes to a file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* NULL before the first constructor. */
static _Atomic int64_t *number;

__attribute__((constructor)) static void map(void) {
    int file = open(getenv("PRELOADED_NUMBER"), O_RDONLY);
    void *mapped = mmap(NULL, sizeof *number, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED)
        abort();
    number = mapped;
}
