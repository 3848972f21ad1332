import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import org.apache.flink.api.common.JobExecutionResult;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.core.execution.JobClient;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.fluss.flink.tiering.LakeTieringJobBuilder;

/**
 * Fluss' tiering service in one JVM that may stop it and start it again, so that the next start finds everything compiled. Flink's settings
 * are in the first file, Fluss' in the second, the lake's in the third. Each line on standard input that says "start" starts the job that
 * Fluss' own entry point builds, any other cancels it; with the end of the input, or of a job by itself, the process ends.
 */
public final class TieringPeer {
    public static void main(String[] arguments) {
        try {
            Configuration settings = Configuration.fromMap(read(arguments[0]));
            org.apache.fluss.config.Configuration fluss = org.apache.fluss.config.Configuration.fromMap(read(arguments[1]));
            org.apache.fluss.config.Configuration lake = org.apache.fluss.config.Configuration.fromMap(read(arguments[2]));
            JobClient job = null;
            CompletableFuture<JobExecutionResult> ended = null;
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
            for (String command; (command = commands.readLine()) != null; ) {
                if (command.equals("start")) {
                    job =
                            LakeTieringJobBuilder.newBuilder(
                                            StreamExecutionEnvironment.getExecutionEnvironment(settings),
                                            fluss,
                                            lake,
                                            new org.apache.fluss.config.Configuration(),
                                            "paimon")
                                    .build();
                    ended = job.getJobExecutionResult();
                    ended.whenComplete(TieringPeer::endUnlessCancelled);
                } else {
                    cancelled = true;
                    job.cancel().get();
                    ended.handle((result, error) -> null).get();
                    cancelled = false;
                }
            }
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            // The cluster's threads would keep the process alive.
            System.exit(1);
        }
    }

    private static volatile boolean cancelled = false;

    private static void endUnlessCancelled(JobExecutionResult result, Throwable error) {
        if (!cancelled) {
            if (error != null) {
                error.printStackTrace();
            }
            // Not from here: this thread is one that the end of the process waits for.
            new Thread(() -> System.exit(1)).start();
        }
    }

    private static Map<String, String> read(String file) throws Exception {
        Properties given = new Properties();
        try (Reader reader = Files.newBufferedReader(Path.of(file))) {
            given.load(reader);
        }
        return given.stringPropertyNames().stream().collect(Collectors.toMap(name -> name, given::getProperty));
    }
}
