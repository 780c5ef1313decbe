package compare;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;

import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RReadWriteLock;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** Locks of one kind. */
@FunctionalInterface
interface Locks {
    /** Waits for a lock, and returns its release. */
    Runnable lock(String key, boolean shared) throws InterruptedException;

    /**
     * Returns the locks of a kind: {@code plain}, {@code fair}, {@code readwrite}, {@code semaphore} or {@code
     * expirable}.
     */
    static Locks of(String kind, RedissonClient redisson, int permits) {
        switch (kind) {
            case "plain":
                return (key, shared) -> locked(redisson.getLock(key));
            case "fair":
                return (key, shared) -> locked(redisson.getFairLock(key));
            case "readwrite":
                return (key, shared) -> {
                    RReadWriteLock lock = redisson.getReadWriteLock(key);
                    return locked(shared ? lock.readLock() : lock.writeLock());
                };
            case "semaphore":
                return semaphores(redisson, permits);
            case "expirable":
                return expirable(redisson, permits);
            default:
                throw new IllegalArgumentException(kind);
        }
    }

    /** Without a lease time, the watchdog renews the lock, as in tower-lock. */
    private static Runnable locked(RLock lock) {
        lock.lock();
        return lock::unlock;
    }

    private static Locks semaphores(RedissonClient redisson, int permits) {
        Map<String, RSemaphore> known = new ConcurrentHashMap<>();
        return (key, shared) -> {
            RSemaphore semaphore =
                    known.computeIfAbsent(
                            key,
                            name -> {
                                RSemaphore made = redisson.getSemaphore(name);
                                made.trySetPermits(permits);
                                return made;
                            });
            semaphore.acquire();
            return semaphore::release;
        };
    }

    /** With a lease time of 30 s. Without one, a permit of a process that died would never be free. */
    private static Locks expirable(RedissonClient redisson, int permits) {
        Map<String, RPermitExpirableSemaphore> known = new ConcurrentHashMap<>();
        return (key, shared) -> {
            RPermitExpirableSemaphore semaphore =
                    known.computeIfAbsent(
                            key,
                            name -> {
                                RPermitExpirableSemaphore made =
                                        redisson.getPermitExpirableSemaphore(name);
                                made.trySetPermits(permits);
                                return made;
                            });
            String permit = semaphore.acquire(30, TimeUnit.SECONDS);
            return () -> semaphore.release(permit);
        };
    }
}
