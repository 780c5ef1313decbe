/* Preloaded: CLOCK_MONOTONIC without the time of suspends, whose nanoseconds are the number. */
#include "number.h"

static const int64_t SECOND = 1000000000;

int clock_gettime(clockid_t clock, struct timespec *at) {
    long outcome = syscall(SYS_clock_gettime, clock, at);
    if (outcome == 0 && clock == CLOCK_MONOTONIC && number) {
        int64_t nanos = at->tv_sec * SECOND + at->tv_nsec - atomic_load(number);
        at->tv_sec = nanos / SECOND;
        at->tv_nsec = nanos % SECOND;
    }
    return (int)outcome;
}
