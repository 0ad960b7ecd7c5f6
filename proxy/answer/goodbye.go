package answer

import (
	"bytes"
	"encoding/binary"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/internal/sniff"
)

// Goodbye is a refusal in the words of the protocol that a client begins, for clients that show them to their user. The protocol
// is known by the first bytes. Where the server speaks first, the port tells, and first is empty. It is nil for every
// other protocol. Nothing of the upstream may have reached the client.
func Goodbye(r *egress.Refusal, first []byte, port uint16) []byte {
	why := ShortSentence(r)
	switch {
	case sniff.Detect(first) == sniff.SSH, len(first) == 0 && port == 22:
		return sshGoodbye(why)
	case isRedis(first):
		return []byte("-ERR " + why + "\r\n")
	case isPostgres(first):
		return postgresGoodbye(why)
	case len(first) > 0:
		return nil
	}
	switch port {
	case 25, 587:
		return []byte("554 5.7.1 " + why + "\r\n")
	case 21:
		return []byte("421 " + why + "\r\n")
	case 143:
		return []byte("* BYE " + why + "\r\n")
	case 110:
		return []byte("-ERR " + why + "\r\n")
	}
	return nil
}

// sshGoodbye is an identification (RFC 4253 §4.2) and a disconnect message (§11.1) with the reason. An ssh client reads
// both before any key is agreed on.
func sshGoodbye(why string) []byte {
	const (
		disconnect = 1
		notAllowed = 1 // SSH_DISCONNECT_HOST_NOT_ALLOWED_TO_CONNECT
	)
	payload := binary.BigEndian.AppendUint32([]byte{disconnect}, notAllowed)
	payload = appendString(payload, why)
	payload = appendString(payload, "en")
	return appendPacket([]byte("SSH-2.0-egressd\r\n"), payload)
}

func appendString(b []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(b, uint32(len(s))), s...)
}

// appendPacket frames a payload in the clear (RFC 4253 §6).
func appendPacket(b, payload []byte) []byte {
	const block, least = 8, 4
	padding := block - (4+1+len(payload))%block
	if padding < least {
		padding += block
	}
	b = binary.BigEndian.AppendUint32(b, uint32(1+len(payload)+padding))
	b = append(b, byte(padding))
	b = append(b, payload...)
	return append(b, make([]byte, padding)...)
}

// isRedis reports whether first begins a command as an array of bulk strings, such as "*1\r\n$4\r\nPING\r\n".
func isRedis(first []byte) bool {
	count, rest, ok := bytes.Cut(first, []byte("\r\n$"))
	return ok && len(count) > 1 && len(count) < 8 && count[0] == '*' && len(bytes.Trim(count[1:], "0123456789")) == 0 && len(rest) > 0
}

// isPostgres reports whether first is a startup message of protocol 3.0. A client that asks for TLS before shows no answer to that.
func isPostgres(first []byte) bool {
	const longest = 10000
	if len(first) < 8 {
		return false
	}
	length := binary.BigEndian.Uint32(first)
	return length >= 8 && length < longest && binary.BigEndian.Uint32(first[4:]) == 3<<16
}

// postgresGoodbye is an ErrorResponse.
func postgresGoodbye(why string) []byte {
	fields := "SFATAL\x00VFATAL\x00C28000\x00M" + why + "\x00\x00" // 28000: invalid_authorization_specification
	return append(binary.BigEndian.AppendUint32([]byte{'E'}, uint32(4+len(fields))), fields...)
}
