import com.github.shyiko.mysql.binlog.BinaryLogFileReader;
import com.github.shyiko.mysql.binlog.event.*;
import com.github.shyiko.mysql.binlog.event.deserialization.EventDeserializer;
import java.io.*;
import java.lang.management.ManagementFactory;
import java.nio.file.*;

/** Reads a log file into the connector's event objects several times over; prints changes and seconds of CPU of each pass. */
public class DecodeBench {
    public static void main(String[] args) throws Exception {
        byte[] log = Files.readAllBytes(Path.of(args[0]));
        int passes = Integer.parseInt(args[1]);
        for (int pass = 0; pass < passes; pass++) {
            long before = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
            long changes = 0;
            try (BinaryLogFileReader reader = new BinaryLogFileReader(new ByteArrayInputStream(log), new EventDeserializer())) {
                for (Event event; (event = reader.readEvent()) != null; ) {
                    EventData data = event.getData();
                    if (data instanceof WriteRowsEventData) changes += ((WriteRowsEventData) data).getRows().size();
                    else if (data instanceof UpdateRowsEventData) changes += ((UpdateRowsEventData) data).getRows().size();
                    else if (data instanceof DeleteRowsEventData) changes += ((DeleteRowsEventData) data).getRows().size();
                }
            }
            double seconds = (ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - before) / 1e9;
            System.out.println(changes + " " + seconds);
        }
    }
}
