package proxy

import (
	"encoding/binary"

	"github.com/egressd/egressd/egress"
)

// sshGoodbye is what an ssh client, which reads both before any key is agreed
// on, shows to whoever called it: an identification (RFC 4253 §4.2) and a
// disconnect message (§11.1) with the reason.
func sshGoodbye(r *egress.Refusal) []byte {
	const (
		disconnect = 1
		notAllowed = 1 // SSH_DISCONNECT_HOST_NOT_ALLOWED_TO_CONNECT
	)
	a := answerTo(r.Decision.Class)
	payload := binary.BigEndian.AppendUint32([]byte{disconnect}, notAllowed)
	payload = appendString(payload, reasonPhrase(r, a)+". "+a.message())
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
