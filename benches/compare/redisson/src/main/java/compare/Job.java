package compare;

/**
 * Lock, hold, unlock, by so many threads at a time, until the window is over.
 *
 * @param sharedKeys how many keys all share; 0: a new key for each pair
 * @param name what the keys start with
 * @param holdMillis how long a thread sleeps while it holds the lock; 0: not at all
 */
record Job(int sharedKeys, String name, int inFlight, long windowMillis, long holdMillis) {
    static Job parse(String line) {
        String[] words = line.split(" ");
        int sharedKeys = words[0].equals("new") ? 0 : Integer.parseInt(words[0]);
        return new Job(
                sharedKeys,
                words[1],
                Integer.parseInt(words[2]),
                Long.parseLong(words[3]),
                Long.parseLong(words[4]));
    }
}
