package interop;

import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.util.StringJoiner;
import java.util.concurrent.TimeUnit;

import org.redisson.api.RBucket;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/** The commands. Times are in milliseconds. */
final class Commands {
    private final RedissonClient redisson;

    Commands(RedissonClient redisson) {
        this.redisson = redisson;
    }

    /** {@code number thread command name more…} */
    Object run(String[] words) throws Throwable {
        String name = URLDecoder.decode(words[3], StandardCharsets.UTF_8);
        RLock lock = redisson.getLock(name);
        switch (words[2]) {
            case "lock":
                lock.lock();
                return "";
            case "tryLock":
                return lock.tryLock(number(words[4]), number(words[5]), TimeUnit.MILLISECONDS);
            case "unlock":
                lock.unlock();
                return "";
            case "forceUnlock":
                return lock.forceUnlock();
            case "holdCount":
                return lock.getHoldCount();
            case "isLocked":
                return lock.isLocked();
            case "isHeldByCurrentThread":
                return lock.isHeldByCurrentThread();
            case "remainTimeToLive":
                return lock.remainTimeToLive();
            case "slot":
                return redisson.getKeys().getSlot(name);
            case "fencingToken":
                return Fenced.token(redisson, name);
            case "count":
                count(lock, URLDecoder.decode(words[4], StandardCharsets.UTF_8), number(words[5]));
                return "";
            case "repeat":
                return repeat(lock, number(words[4]), number(words[5]), number(words[6]));
            default:
                throw new IllegalArgumentException(words[2]);
        }
    }

    private static long number(String word) {
        return Long.parseLong(word);
    }

    /**
     * Reads a counter, sleeps, and writes its successor, a number of times. The count is exact only under mutual
     * exclusion.
     *
     * <p>The value also contains the number of turns between the sides, and the last writer.
     */
    private void count(RLock lock, String counter, long times) throws InterruptedException {
        RBucket<String> bucket = redisson.getBucket(counter, StringCodec.INSTANCE);
        for (long time = 0; time < times; time++) {
            lock.lock();
            try {
                String[] before = bucket.get().split(" ");
                Thread.sleep(1);
                long turns = number(before[1]) + (before[2].equals("java") ? 0 : 1);
                bucket.set((number(before[0]) + 1) + " " + turns + " java");
            } finally {
                lock.unlock();
            }
        }
    }

    /**
     * Locks, holds and unlocks, and then pauses, until the window ends. Returns the times at which each wait began and
     * ended, in microseconds of a clock that all processes share.
     */
    private static String repeat(RLock lock, long window, long hold, long pause) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(window);
        StringJoiner waits = new StringJoiner(" ");
        for (long asked = System.nanoTime(); asked < end; asked = System.nanoTime()) {
            lock.lock();
            try {
                waits.add(micros(asked)).add(micros(System.nanoTime()));
                Thread.sleep(hold);
            } finally {
                lock.unlock();
            }
            if (pause > 0) {
                Thread.sleep(pause);
            }
        }
        return waits.toString();
    }

    private static String micros(long nanos) {
        return String.valueOf(TimeUnit.NANOSECONDS.toMicros(nanos));
    }
}
