package compare;

import java.util.Arrays;
import java.util.concurrent.ThreadLocalRandom;

/** The choice of the next key: a new one, or one of the shared keys by Zipf's law. */
final class Keys {
    private final String name;
    /** The sum of the weights up to each shared key. */
    private final double[] sums;

    Keys(Job job) {
        name = job.name();
        sums = new double[job.sharedKeys()];
        double sum = 0;
        for (int rank = 1; rank <= sums.length; rank++) {
            sum += 1.0 / rank;
            sums[rank - 1] = sum;
        }
    }

    /** Returns the key for the n-th pair of a thread. */
    String key(int thread, int n) {
        if (sums.length == 0) {
            return name + ":" + thread + ":" + n;
        }
        double point = ThreadLocalRandom.current().nextDouble() * sums[sums.length - 1];
        int found = Arrays.binarySearch(sums, point);
        return name + ":" + (found < 0 ? -found - 1 : found + 1);
    }
}
