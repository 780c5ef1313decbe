package compare;

/**
 * A job: a number of threads lock, hold and unlock concurrently until the window ends.
 *
 * @param sharedKeys the number of keys that all threads share; 0: a new key per pair
 * @param name the prefix of the keys
 * @param holdMillis how long a thread sleeps while it holds the lock; 0: no sleep
 * @param spreadMillis the longest time that a thread adds to its hold, at random
 * @param pauseMillis how long a thread sleeps after each release; 0: no sleep
 * @param shared whether the threads share the locks
 */
record Job(
        int sharedKeys,
        String name,
        int inFlight,
        long windowMillis,
        long holdMillis,
        long spreadMillis,
        long pauseMillis,
        boolean shared) {
    static Job parse(String line) {
        String[] words = line.split(" ");
        int sharedKeys = words[0].equals("new") ? 0 : Integer.parseInt(words[0]);
        return new Job(
                sharedKeys,
                words[1],
                Integer.parseInt(words[2]),
                Long.parseLong(words[3]),
                Long.parseLong(words[4]),
                Long.parseLong(words[5]),
                Long.parseLong(words[6]),
                words[7].equals("shared"));
    }
}
