package compare;

/**
 * What one thread has seen.
 *
 * @param waits in nanoseconds, from asking for a lock to having it
 * @param inWindow locks that were granted before the window was over
 */
record Part(long[] waits, long inWindow) {}
