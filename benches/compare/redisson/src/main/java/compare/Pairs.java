package compare;

import java.util.Arrays;
import java.util.concurrent.Callable;
import java.util.function.Function;

import org.redisson.api.RLock;

/** The work of one thread: lock, hold and unlock until the end. */
final class Pairs implements Callable<Part> {
    private final Function<String, RLock> locks;
    private final Keys keys;
    private final int thread;
    private final long end;
    private final long holdMillis;

    private long[] waits = new long[1024];
    private int count;

    Pairs(Function<String, RLock> locks, Keys keys, int thread, long end, long holdMillis) {
        this.locks = locks;
        this.keys = keys;
        this.thread = thread;
        this.end = end;
        this.holdMillis = holdMillis;
    }

    @Override
    public Part call() throws InterruptedException {
        long inWindow = 0;
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            RLock lock = locks.apply(keys.key(thread, count));
            // Without a lease time, the watchdog renews the lock, as in tower-lock.
            lock.lock();
            long granted = System.nanoTime();
            record(granted - asked);
            if (granted < end) {
                inWindow++;
            }
            if (holdMillis > 0) {
                Thread.sleep(holdMillis);
            }
            lock.unlock();
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
