"""Prints what TensorBoard's own reader finds in the event files of a folder, as JSON."""
import glob
import json
import math
import os
import sys

from tensorboard.backend.event_processing import event_accumulator, event_file_loader
from tensorboard.plugins.hparams import plugin_data_pb2
from google.protobuf import json_format

folder = sys.argv[1]


def number(value):
    """A number, or its name where JSON has none."""
    return value if math.isfinite(value) else repr(value)


accumulator = event_accumulator.EventAccumulator(
    folder, size_guidance={key: 0 for key in event_accumulator.DEFAULT_SIZE_GUIDANCE}
)
accumulator.Reload()
tags = accumulator.Tags()
found = {
    "version": accumulator.file_version,
    "scalars": {tag: [[e.step, number(e.value)] for e in accumulator.Scalars(tag)] for tag in tags["scalars"]},
    "images": {
        tag: [[e.step, e.width, e.height, e.encoded_image_string.hex()] for e in accumulator.Images(tag)]
        for tag in tags["images"]
    },
    "histograms": {
        tag: [
            [e.step, v.min, v.max, v.num, v.sum, v.sum_squares, list(v.bucket_limit), list(v.bucket)]
            for e in accumulator.Histograms(tag)
            for v in [e.histogram_value]
        ]
        for tag in tags["histograms"]
    },
    "texts": {},
    "settings": {},
}
for tag in tags["tensors"]:
    plugin = accumulator.SummaryMetadata(tag).plugin_data.plugin_name
    if plugin == "text":
        texts = [[e.step, [text.decode() for text in e.tensor_proto.string_val]] for e in accumulator.Tensors(tag)]
        found["texts"][tag] = texts
# Hyper-parameters are in the metadata of tags that have no value.
for path in sorted(glob.glob(os.path.join(folder, "*tfevents*"))):
    for event in event_file_loader.LegacyEventFileLoader(path).Load():
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                data = plugin_data_pb2.HParamsPluginData.FromString(value.metadata.plugin_data.content)
                found["settings"][value.tag] = json_format.MessageToDict(data, preserving_proto_field_name=True)
print(json.dumps(found))
