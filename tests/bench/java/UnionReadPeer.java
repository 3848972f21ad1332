import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.Reader;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Base64;
import java.util.Properties;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Fluss' own union read: Flink SQL in batch mode, in one JVM. Flink's settings are in the first file, the second argument is Fluss' address.
 * Each line on standard input names a table and, after a space, a file, which appears when it has all rows: a line each, fields in Base64
 * with spaces between them, "-" for NULL.
 */
public final class UnionReadPeer {
    public static void main(String[] arguments) {
        try {
            Properties given = new Properties();
            try (Reader reader = Files.newBufferedReader(Path.of(arguments[0]))) {
                given.load(reader);
            }
            Configuration settings = new Configuration();
            given.stringPropertyNames().forEach(name -> settings.setString(name, given.getProperty(name)));
            TableEnvironment tables =
                    TableEnvironment.create(EnvironmentSettings.newInstance().inBatchMode().withConfiguration(settings).build());
            tables.executeSql("CREATE CATALOG fluss WITH ('type' = 'fluss', 'bootstrap.servers' = '" + arguments[1] + "')");
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
            for (String command; (command = commands.readLine()) != null; ) {
                String[] wanted = command.split(" ", 2);
                Path target = Path.of(wanted[1]);
                Path unfinished = Path.of(wanted[1] + ".part");
                try (CloseableIterator<Row> rows = tables.executeSql("SELECT * FROM fluss." + wanted[0]).collect();
                        BufferedWriter file = Files.newBufferedWriter(unfinished)) {
                    while (rows.hasNext()) {
                        write(file, rows.next());
                    }
                }
                Files.move(unfinished, target, StandardCopyOption.ATOMIC_MOVE);
            }
            System.exit(0);
        } catch (Throwable error) {
            error.printStackTrace();
            // The cluster's threads would keep the process alive.
            System.exit(1);
        }
    }

    private static void write(BufferedWriter file, Row row) throws Exception {
        for (int place = 0; place < row.getArity(); place++) {
            Object value = row.getField(place);
            byte[] text = String.valueOf(value).getBytes(StandardCharsets.UTF_8);
            file.write((place == 0 ? "" : " ") + (value == null ? "-" : "=" + Base64.getEncoder().encodeToString(text)));
        }
        file.write("\n");
    }
}
