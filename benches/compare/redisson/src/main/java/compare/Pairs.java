package compare;

import java.util.Arrays;
import java.util.concurrent.Callable;
import java.util.concurrent.ThreadLocalRandom;

/** The work of one thread: lock, hold and unlock until the end. */
final class Pairs implements Callable<Part> {
    private final Locks locks;
    private final Keys keys;
    private final int thread;
    private final long end;
    private final Job job;

    private long[] waits = new long[1024];
    private int count;

    Pairs(Locks locks, Keys keys, int thread, long end, Job job) {
        this.locks = locks;
        this.keys = keys;
        this.thread = thread;
        this.end = end;
        this.job = job;
    }

    @Override
    public Part call() throws InterruptedException {
        long inWindow = 0;
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            Runnable unlock = locks.lock(keys.key(thread, count), job.shared());
            long granted = System.nanoTime();
            record(granted - asked);
            if (granted < end) {
                inWindow++;
            }
            long spread = ThreadLocalRandom.current().nextLong(job.spreadMillis() + 1);
            if (job.holdMillis() + spread > 0) {
                Thread.sleep(job.holdMillis() + spread);
            }
            unlock.run();
            if (job.pauseMillis() > 0) {
                Thread.sleep(job.pauseMillis());
            }
        }
        return new Part(Arrays.copyOf(waits, count), inWindow);
    }

    private void record(long wait) {
        if (count == waits.length) {
            waits = Arrays.copyOf(waits, 2 * count);
        }
        waits[count++] = wait;
    }
}
