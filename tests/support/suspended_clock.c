/* Preloaded: CLOCK_MONOTONIC without the time of suspends, which a file contains. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static const int64_t SECOND = 1000000000;
static _Atomic int64_t *suspended;

__attribute__((constructor)) static void map(void) {
    int file = open(getenv("SUSPENDED_NANOS"), O_RDONLY);
    void *nanos = mmap(NULL, sizeof *suspended, PROT_READ, MAP_SHARED, file, 0);
    if (file < 0 || nanos == MAP_FAILED)
        abort();
    suspended = nanos;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    long outcome = syscall(SYS_clock_gettime, clock, at);
    if (outcome == 0 && clock == CLOCK_MONOTONIC && suspended) {
        int64_t nanos = at->tv_sec * SECOND + at->tv_nsec - atomic_load(suspended);
        at->tv_sec = nanos / SECOND;
        at->tv_nsec = nanos % SECOND;
    }
    return (int)outcome;
}
