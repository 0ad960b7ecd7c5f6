package export

import "google.golang.org/protobuf/encoding/protowire"

// OTLPAnswer reads the protobuf answer of a receiver of OTLP/HTTP. With good, it is an ExportLogsServiceResponse: the number of
// rejected records, and a message. Otherwise it is a Status of gRPC with a message.
func OTLPAnswer(text []byte, good bool) (rejected int64, words string) {
	if !good {
		return 0, string(bytesOf(text, 2)) // Status.message
	}
	partial := bytesOf(text, 1)
	return numberOf(partial, 1), string(bytesOf(partial, 2))
}

// bytesOf returns the last value of a field of a protobuf message, or nil.
func bytesOf(message []byte, field protowire.Number) (value []byte) {
	fields(message, func(n protowire.Number, kind protowire.Type, at []byte) {
		if v, size := protowire.ConsumeBytes(at); n == field && kind == protowire.BytesType && size >= 0 {
			value = v
		}
	})
	return value
}

// numberOf returns the last value of an integer field of a protobuf message, or 0.
func numberOf(message []byte, field protowire.Number) (value int64) {
	fields(message, func(n protowire.Number, kind protowire.Type, at []byte) {
		if v, size := protowire.ConsumeVarint(at); n == field && kind == protowire.VarintType && size >= 0 {
			value = int64(v)
		}
	})
	return value
}

// fields calls do with each field of a protobuf message, up to the first that is malformed.
func fields(message []byte, do func(n protowire.Number, kind protowire.Type, at []byte)) {
	for len(message) > 0 {
		n, kind, size := protowire.ConsumeTag(message)
		if size < 0 {
			return
		}
		message = message[size:]
		if size = protowire.ConsumeFieldValue(n, kind, message); size < 0 {
			return
		}
		do(n, kind, message)
		message = message[size:]
	}
}
