package compare;

/**
 * The observations of one thread.
 *
 * @param waits in nanoseconds, from the request for a lock to its grant
 * @param inWindow the number of grants within the window
 */
record Part(long[] waits, long inWindow) {}
