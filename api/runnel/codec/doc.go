// Package codec moves Runnel's hot messages over gRPC without copying record batches through protobuf.
//
// [Codec] is a gRPC CodecV2 named "proto". A [ProduceFrame] is a ProduceRequest and a [FetchFrame] is a FetchResponse; between
// brokers a [ReplicateFrame] is a ReplicateResponse and a [ReplicateRequestFrame] a ReplicateRequest. On the wire they are ordinary
// protobuf, byte for byte what the generated code writes, so any stub of any language talks to either side. In memory the batch
// bytes stay in a reference-counted buffer: encoding sends a small header and the buffer as it is; decoding takes a slice of what
// the transport received, or gathers it once when it came in several HTTP/2 frames. Every other message goes through
// google.golang.org/protobuf.
//
// The codec is set per server (grpc.ForceServerCodecV2) and per call or connection (grpc.ForceCodecV2); nothing is
// registered globally. Frames are given to the generated streams by SendMsg and RecvMsg.
//
// Decoding is stricter than protobuf: a known field that occurs twice or with another wire type is refused, because no
// encoder writes it and accepting it would only serve someone who looks for a difference between two parsers. Unknown
// fields are skipped, so that fields can be added later.
//
// Rejected: generated code with a custom bytes type (not wire-compatible tooling), and a second content subtype (thin
// clients would then need two paths).
package codec
