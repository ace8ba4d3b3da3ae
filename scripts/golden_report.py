"""Golden files for reports and pictures: TensorBoard's own bytes, and pictures as Pillow reads them."""

import io
import struct
import zlib

from golden_common import write_json


def tensorboard(folder):
    """events.bin: the file that worker/ddprun/report/tensorboard_sink must write for the same events."""
    # Imported here because the other groups do not need tensorboard.
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter
    from torch.utils.tensorboard import summary

    scalars = Summary(
        value=[
            Summary.Value(tag="train/epoch", simple_value=0),
            Summary.Value(tag="train/loss", simple_value=0.1234567891),
            Summary.Value(tag="val/acc", simple_value=float("nan")),
        ]
    )
    image = Summary(
        value=[
            Summary.Value(
                tag="samples",
                image=Summary.Image(height=2, width=300, colorspace=3, encoded_image_string=b"\x89PNG\x00\xff"),
            )
        ]
    )
    events = [
        Event(wall_time=1700000000.25, file_version="brain.Event:2"),
        Event(wall_time=1700000000.5, step=70000, session_log=SessionLog(status=SessionLog.START)),
        Event(wall_time=1700000001.0, step=70000, summary=scalars),
        Event(wall_time=1700000002.0, step=70001, summary=image),
        Event(wall_time=1700000003.0, summary=summary.text("config", "lr = 0.1 \u00b5")),
    ]
    stream = io.BytesIO()
    writer = RecordWriter(stream)
    for event in events:
        writer.write(event.SerializeToString())
    (folder / "events.bin").write_bytes(stream.getvalue())


def _chunk(name, data):
    body = name + data
    return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))


def _png(width, height, depth, colour, rows, interlaced=False, extra=b""):
    """A PNG file from packed rows; if interlaced, those of the seven passes in turn."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, int(interlaced))
    pixels = zlib.compress(b"".join(b"\0" + row for row in rows))
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + extra + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")


def png(folder):
    """PNG files of every colour type, and their pixels as Pillow reads them."""
    from PIL import Image

    grey = [[(37 * x + 91 * y) % 256 for x in range(5)] for y in range(4)]
    adam7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    passes = [bytes(grey[y][x] for x in range(x0, 5, dx)) for x0, y0, dx, dy in adam7 for y in range(y0, 4, dy)]
    palette = _chunk(b"PLTE", bytes(range(0, 48)))
    deep = [b"".join(struct.pack(">HHH", 257 * v, 5000 + v, 65535 - v) for v in row) for row in grey]
    files = {
        "grey": (_png(5, 4, 8, 0, map(bytes, grey)), "L"),
        "grey_1_bit": (_png(5, 2, 1, 0, [b"\xa8", b"\x50"]), "L"),
        "grey_alpha": (_png(2, 2, 8, 4, [b"\x10\xff\x20\x80", b"\x30\x00\x40\x01"]), "RGBA"),
        "interlaced": (_png(5, 4, 8, 0, [row for row in passes if row], interlaced=True), "L"),
        "palette_4_bit": (_png(4, 2, 4, 3, [b"\x01\x23", b"\xfe\xdc"], extra=palette), "RGB"),
        "palette_transparent": (_png(2, 1, 8, 3, [b"\x00\x01"], extra=palette + _chunk(b"tRNS", b"\x07")), "RGBA"),
        "rgb": (_png(2, 2, 8, 2, [bytes(range(6)), bytes(range(250, 256))]), "RGB"),
        "rgb_16_bit": (_png(5, 4, 16, 2, deep), "RGB"),
        "rgba": (_png(1, 2, 8, 6, [b"\x01\x02\x03\x04", b"\xff\xfe\xfd\xfc"]), "RGBA"),
    }
    expected = {}
    for name, (content, mode) in files.items():
        (folder / f"{name}.png").write_bytes(content)
        picture = Image.open(io.BytesIO(content)).convert(mode)
        expected[name] = {"size": list(picture.size), "channels": len(mode), "bytes": list(picture.tobytes())}
    write_json(folder / "expected.json", expected)


def jpeg(folder):
    """JPEG files, and their pixels as Pillow reads them."""
    from PIL import Image

    expected = {}
    for name, mode, options in [
        ("grey", "L", {}),
        ("rgb", "RGB", {"subsampling": 0}),
        ("rgb_subsampled", "RGB", {"subsampling": 2}),
        ("progressive", "RGB", {"progressive": True}),
    ]:
        picture = Image.new("RGB", (19, 11))
        picture.putdata([(13 * x, 20 * y, 255 - 9 * x) for y in range(11) for x in range(19)])
        picture.convert(mode).save(folder / f"{name}.jpg", quality=90, **options)
        read = Image.open(folder / f"{name}.jpg")
        expected[name] = {"size": list(read.size), "channels": len(mode), "bytes": list(read.tobytes())}
    Image.new("CMYK", (4, 4)).save(folder / "cmyk.jpg")
    write_json(folder / "expected.json", expected)
