package sniff

import "encoding/binary"

// A hello is the recipe of a ClientHello; what is left zero gets a plain value.
type hello struct {
	version     uint16
	session     []byte
	suites      []byte
	compression []byte
	extensions  [][]byte
	tail        []byte // after the extensions
}

func (h hello) message() []byte {
	if h.version == 0 {
		h.version = 0x0303
	}
	if h.suites == nil {
		h.suites = []byte{0x13, 0x01}
	}
	if h.compression == nil {
		h.compression = []byte{0}
	}
	body := binary.BigEndian.AppendUint16(nil, h.version)
	body = append(body, make([]byte, 32)...)
	body = append(body, vec8(h.session)...)
	body = append(body, vec16(h.suites)...)
	body = append(body, vec8(h.compression)...)
	if h.extensions != nil {
		var all []byte
		for _, e := range h.extensions {
			all = append(all, e...)
		}
		body = append(body, vec16(all)...)
	}
	body = append(body, h.tail...)
	return append([]byte{typeClientHello, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// inRecords cuts a message into records of n bytes.
func inRecords(message []byte, n int) (b []byte) {
	for len(message) > 0 {
		n = min(n, len(message))
		b = append(b, recordHandshake, 3, 1)
		b = append(b, vec16(message[:n])...)
		message = message[n:]
	}
	return b
}

func vec8(b []byte) []byte { return append([]byte{byte(len(b))}, b...) }

func vec16(b []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

func extension(t uint16, content []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, t), vec16(content)...)
}

func uint16s(values ...uint16) (b []byte) {
	for _, v := range values {
		b = binary.BigEndian.AppendUint16(b, v)
	}
	return b
}

func serverName(name string) []byte {
	return extension(extServerName, vec16(append([]byte{0}, vec16([]byte(name))...)))
}

func alpn(names ...string) []byte {
	var list []byte
	for _, n := range names {
		list = append(list, vec8([]byte(n))...)
	}
	return extension(extALPN, vec16(list))
}
