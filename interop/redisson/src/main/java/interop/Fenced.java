package interop;

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;

import org.redisson.api.RedissonClient;

/** {@code getFencedLock}, which older versions lack. */
final class Fenced {
    private Fenced() {}

    /** Locks, unlocks, and returns the token. */
    static Object token(RedissonClient redisson, String name) throws Throwable {
        try {
            Object lock = RedissonClient.class.getMethod("getFencedLock", String.class)
                    .invoke(redisson, name);
            Method locked = Class.forName("org.redisson.api.RFencedLock").getMethod("lockAndGetToken");
            Object token = locked.invoke(lock);
            ((org.redisson.api.RLock) lock).unlock();
            return token;
        } catch (InvocationTargetException thrown) {
            throw thrown.getCause();
        }
    }
}
