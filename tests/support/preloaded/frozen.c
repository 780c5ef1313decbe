/* Preloaded: a wall clock frozen at the number, in milliseconds. */
#include "number.h"

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (clock != CLOCK_REALTIME || !number)
        return (int)syscall(SYS_clock_gettime, clock, at);
    int64_t millis = atomic_load(number);
    at->tv_sec = millis / 1000;
    at->tv_nsec = millis % 1000 * 1000000;
    return 0;
}

#include "wall_clock.h"
