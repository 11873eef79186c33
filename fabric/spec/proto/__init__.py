"""Virtual clusters as protobuf messages: `messages` converts them, `*_pb2` is generated code."""
