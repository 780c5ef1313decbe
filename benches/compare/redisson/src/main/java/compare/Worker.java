package compare;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Reads jobs from its input, one per line, runs them with one kind of Redisson's locks, and replies on its
 * output. The protocol is that of the workers in Rust, see {@code job.rs}.
 */
public final class Worker {
    /** How long after its window a job may take. */
    private static final long PATIENCE_SECONDS = 30;

    private final Locks locks;
    /** The pool never ends a thread, because Redisson identifies an owner by its thread. */
    private final ExecutorService threads = Executors.newCachedThreadPool();

    private Worker(Locks locks) {
        this.locks = locks;
    }

    public static void main(String[] arguments) throws IOException {
        Config config = new Config();
        config.useSingleServer().setAddress(arguments[0]);
        RedissonClient redisson = Redisson.create(config);
        Worker worker =
                new Worker(Locks.of(arguments[1], redisson, Integer.parseInt(arguments[2])));
        System.out.println("ready");
        BufferedReader jobs =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            System.out.println(worker.answer(line));
        }
        // The exit does not wait for threads that may hang.
        System.exit(0);
    }

    private String answer(String line) {
        try {
            return "done " + run(Job.parse(line));
        } catch (Exception failure) {
            return "failed " + failure.toString().replace('\n', ' ');
        }
    }

    private Done run(Job job) throws ExecutionException, InterruptedException, TimeoutException {
        Keys keys = new Keys(job);
        List<Future<Part>> parts = new ArrayList<>();
        long start = System.nanoTime();
        long end = start + TimeUnit.MILLISECONDS.toNanos(job.windowMillis());
        for (int thread = 0; thread < job.inFlight(); thread++) {
            parts.add(threads.submit(new Pairs(locks, keys, thread, end, job)));
        }
        long last = end + TimeUnit.SECONDS.toNanos(PATIENCE_SECONDS);
        List<Part> finished = new ArrayList<>();
        for (Future<Part> part : parts) {
            finished.add(part.get(last - System.nanoTime(), TimeUnit.NANOSECONDS));
        }
        return Done.of(finished, (System.nanoTime() - start) / 1e9);
    }
}
