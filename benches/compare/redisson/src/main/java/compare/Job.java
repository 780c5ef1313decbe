package compare;

/**
 * A job: a number of threads lock, hold and unlock concurrently until the window ends.
 *
 * @param sharedKeys the number of keys that all threads share; 0: a new key per pair
 * @param name the prefix of the keys
 * @param holdMillis how long a thread sleeps while it holds the lock; 0: no sleep
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
