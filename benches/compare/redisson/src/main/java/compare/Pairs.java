package compare;

import java.util.Arrays;
import java.util.concurrent.Callable;

import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** What one thread does: lock, nothing, unlock, until the end. */
final class Pairs implements Callable<Part> {
    private final RedissonClient redisson;
    private final Keys keys;
    private final int thread;
    private final long end;

    private long[] waits = new long[1024];
    private int count;

    Pairs(RedissonClient redisson, Keys keys, int thread, long end) {
        this.redisson = redisson;
        this.keys = keys;
        this.thread = thread;
        this.end = end;
    }

    @Override
    public Part call() {
        long inWindow = 0;
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            RLock lock = redisson.getLock(keys.key(thread, count));
            // Without a lease time: renewed by the watchdog, as tower-lock's are.
            lock.lock();
            long granted = System.nanoTime();
            record(granted - asked);
            if (granted < end) {
                inWindow++;
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
