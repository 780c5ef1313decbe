package compare;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;

import org.HdrHistogram.Histogram;

/** The result of a job. Its text form is the reply. */
record Done(long pairs, long inWindow, long least, double seconds, Histogram waits) {
    static Done of(List<Part> parts, double seconds) {
        Histogram waits = new Histogram(3);
        waits.setAutoResize(true);
        long inWindow = 0;
        long least = Long.MAX_VALUE;
        for (Part part : parts) {
            inWindow += part.inWindow();
            least = Math.min(least, part.inWindow());
            for (long wait : part.waits()) {
                waits.recordValue(wait);
            }
        }
        return new Done(waits.getTotalCount(), inWindow, least, seconds, waits);
    }

    @Override
    public String toString() {
        ByteBuffer bytes = ByteBuffer.allocate(waits.getNeededByteBufferCapacity());
        int length = waits.encodeIntoByteBuffer(bytes);
        ByteBuffer text = Base64.getEncoder().encode(bytes.flip().slice(0, length));
        return pairs + " " + inWindow + " " + least + " " + seconds + " "
                + StandardCharsets.US_ASCII.decode(text);
    }
}
