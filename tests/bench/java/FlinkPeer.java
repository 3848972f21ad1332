import java.io.Reader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.table.api.TableResult;

/**
 * Flink in one JVM: reads its settings from the first file, executes the statements of the second, of which the last is an INSERT, and
 * stays until that job ends or somebody ends this process.
 */
public final class FlinkPeer {
    public static void main(String[] arguments) {
        try {
            Properties given = new Properties();
            try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
                given.load(reader);
            }
            Configuration settings = new Configuration();
            given.stringPropertyNames().forEach(name -> settings.setString(name, given.getProperty(name)));
            TableEnvironment tables =
                    TableEnvironment.create(
                            EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings).build());
            TableResult last = null;
            for (String statement : Files.readString(Path.of(arguments[1])).split(";\n")) {
                last = tables.executeSql(statement);
            }
            last.await();
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            // The cluster's threads would keep the process alive.
            System.exit(1);
        }
    }
}
