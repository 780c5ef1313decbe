package interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

import org.redisson.Redisson;
import org.redisson.api.RedissonClient;

/**
 * Runs commands with Redisson's {@code RLock}: one command per line of its input, and one line on its output
 * when the command has ended.
 *
 * <pre>
 * in:   number thread command argument…
 * out:  number ok value     or     number failed exception message
 * </pre>
 *
 * Redisson identifies an owner by its thread, so a command names the thread that runs it. Commands of one
 * thread run in sequence, and those of several threads run concurrently. Arguments are percent-encoded.
 */
public final class Program {
    private static final PrintStream OUT = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    private Program() {}

    /** Arguments: {@code single|sentinel|cluster}, watchdog timeout in ms, service or "-", addresses. */
    public static void main(String[] arguments) throws IOException {
        Commands commands = new Commands(connected(arguments));
        Map<String, ExecutorService> threads = new ConcurrentHashMap<>();
        answer("ready");
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[1], name -> Executors.newSingleThreadExecutor())
                    .execute(() -> answer(words[0] + " " + outcome(commands, words)));
        }
        // The exit does not wait for threads that may hang.
        System.exit(0);
    }

    private static RedissonClient connected(String[] arguments) {
        try {
            return Redisson.create(Configs.of(arguments));
        } catch (RuntimeException failure) {
            failure.printStackTrace();
            // Its threads would continue.
            System.exit(1);
            throw failure;
        }
    }

    private static String outcome(Commands commands, String[] words) {
        try {
            return "ok " + commands.run(words);
        } catch (Throwable failure) {
            String what = failure.getClass().getSimpleName() + " " + failure.getMessage();
            return "failed " + what.replace('\n', ' ');
        }
    }

    private static synchronized void answer(String line) {
        OUT.println(line);
        OUT.flush();
    }
}
