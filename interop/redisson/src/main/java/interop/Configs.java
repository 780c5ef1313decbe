package interop;

import java.util.Arrays;

import org.redisson.config.Config;
import org.redisson.config.ReadMode;

/** The servers that Redisson connects to. It reads from primaries, because a replica may be late. */
final class Configs {
    private Configs() {}

    static Config of(String[] arguments) {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(arguments[1]));
        String[] addresses = Arrays.copyOfRange(arguments, 3, arguments.length);
        switch (arguments[0]) {
            case "single" -> config.useSingleServer().setAddress(addresses[0]);
            case "sentinel" -> config.useSentinelServers()
                    .setMasterName(arguments[2])
                    // The tests run fewer sentinels than Redisson expects.
                    .setCheckSentinelsList(false)
                    .setReadMode(ReadMode.MASTER)
                    .addSentinelAddress(addresses);
            case "cluster" -> config.useClusterServers()
                    .setReadMode(ReadMode.MASTER)
                    .addNodeAddress(addresses);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
        return config;
    }
}
