import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.Reader;
import java.lang.reflect.Array;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Base64;
import java.util.HexFormat;
import java.util.Map;
import java.util.Properties;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;
import org.apache.flink.types.Row;
import org.apache.flink.util.CloseableIterator;

/**
 * Flink SQL with Fluss' own connector, in batch mode and in one JVM. Flink's settings are in the first file, the second argument is Fluss'
 * address; its catalog is named fluss. Each line on standard input is a file and, after a space, a statement in Base64. The file appears
 * when the statement is done. It has the rows of a SELECT: a line each, fields in Base64 with spaces between them, "-" for NULL.
 */
public final class SqlPeer {
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
                Path target = Path.of(wanted[0]);
                Path unfinished = Path.of(wanted[0] + ".part");
                String statement = new String(Base64.getDecoder().decode(wanted[1]), StandardCharsets.UTF_8);
                try (BufferedWriter file = Files.newBufferedWriter(unfinished)) {
                    if (statement.startsWith("SELECT ")) {
                        try (CloseableIterator<Row> rows = tables.executeSql(statement).collect()) {
                            while (rows.hasNext()) {
                                write(file, rows.next());
                            }
                        }
                    } else {
                        tables.executeSql(statement).await();
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
            String text = value instanceof String ? (String) value : shown(value);
            byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
            file.write((place == 0 ? "" : " ") + (value == null ? "-" : "=" + Base64.getEncoder().encodeToString(bytes)));
        }
        file.write("\n");
    }

    /** A value inside of another: no two that differ look alike. */
    private static String shown(Object value) {
        if (value instanceof String) {
            return '"' + ((String) value).replace("\\", "\\\\").replace("\"", "\\\"") + '"';
        }
        if (value instanceof byte[]) {
            return "0x" + HexFormat.of().formatHex((byte[]) value);
        }
        if (value instanceof Row) {
            Row row = (Row) value;
            return IntStream.range(0, row.getArity()).mapToObj(place -> shown(row.getField(place))).collect(Collectors.joining(", ", "(", ")"));
        }
        if (value instanceof Map) {
            return ((Map<?, ?>) value)
                    .entrySet().stream()
                            .map(entry -> shown(entry.getKey()) + ": " + shown(entry.getValue()))
                            .sorted()
                            .collect(Collectors.joining(", ", "{", "}"));
        }
        if (value != null && value.getClass().isArray()) {
            return IntStream.range(0, Array.getLength(value))
                    .mapToObj(place -> shown(Array.get(value, place)))
                    .collect(Collectors.joining(", ", "[", "]"));
        }
        return String.valueOf(value);
    }
}
