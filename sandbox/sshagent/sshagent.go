// Package sshagent lets a program sign with some keys of an agent for ssh, and ask the agent for nothing else
// (draft-ietf-sshm-ssh-agent). The agent adds and removes no key for the program, loads no library, and starts no program.
//
//	agent, err := sshagent.Dial(os.Getenv("SSH_AUTH_SOCK"))
//	keys, err := sshagent.List(agent)
//	s := sshagent.Signer{Keys: keys[:1]}
//	err = s.Serve(program, agent)
package sshagent

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"
)

// Kinds of messages.
const (
	failure           = 5
	success           = 6
	requestIdentities = 11
	identitiesAnswer  = 12
	signRequest       = 13
	signResponse      = 14
	extension         = 27
	extensionFailure  = 28
)

// messageMost bounds a message in bytes, as OpenSSH does.
const messageMost = 256 << 10

// sessionBind tells the agent which host a connection is to, so that keys which are for some hosts alone can be used
// (PROTOCOL.agent of OpenSSH). It only narrows what the agent signs.
const sessionBind = "session-bind@openssh.com"

var errMessage = errors.New("a message that is no agent's")

// A PublicKey is a public key, or a certificate, of an agent.
type PublicKey struct {
	Blob    []byte // as ssh writes it
	Comment string
}

// Fingerprint returns "SHA256:…", as ssh-add -l has it for a key that is no certificate.
func (k PublicKey) Fingerprint() string {
	sum := sha256.Sum256(k.Blob)
	return "SHA256:" + base64.RawStdEncoding.EncodeToString(sum[:])
}

// Dial connects to the socket of an agent, which may be on this machine alone.
func Dial(socket string) (net.Conn, error) { return net.DialTimeout("unix", socket, patience) }

// patience is how long an agent may take to accept a connection.
const patience = 5 * time.Second

// List asks an agent for its keys.
func List(agent io.ReadWriter) ([]PublicKey, error) {
	answer, err := ask(agent, []byte{requestIdentities})
	if err != nil {
		return nil, err
	}
	if answer[0] != identitiesAnswer || len(answer) < 5 {
		return nil, errMessage
	}
	var keys []PublicKey
	count, rest := binary.BigEndian.Uint32(answer[1:]), answer[5:]
	for range count {
		blob, after, ok := cut(rest)
		comment, last, more := cut(after)
		if !ok || !more {
			return nil, errMessage
		}
		keys, rest = append(keys, PublicKey{blob, string(comment)}), last
	}
	if len(rest) > 0 {
		return nil, errMessage
	}
	return keys, nil
}

// A Signer stands between programs and an agent, and passes on what signing takes. It is safe for concurrent use.
type Signer struct {
	Keys []PublicKey           // that programs list, as far as the agent has them, and sign with
	Used func(PublicKey) error // is called before each signature, which an error refuses; it may be nil
}

// Serve answers a program until it hangs up, which is no error. The agent is asked over a connection that is for this program
// alone.
func (s *Signer) Serve(program, agent io.ReadWriter) error {
	for {
		message, err := read(program)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve an agent: %w", err)
		}
		answer, err := s.answer(message, agent)
		if err != nil {
			return fmt.Errorf("ask the agent: %w", err)
		}
		if err := write(program, answer); err != nil {
			return fmt.Errorf("serve an agent: %w", err)
		}
	}
}

func (s *Signer) answer(message []byte, agent io.ReadWriter) ([]byte, error) {
	switch kind, rest := message[0], message[1:]; {
	case kind == requestIdentities && len(rest) == 0:
		return s.list(agent)
	case kind == signRequest:
		key, ok := s.signsWith(rest)
		if !ok || s.Used != nil && s.Used(key) != nil {
			break
		}
		return askFor(agent, message, signResponse)
	case kind == extension:
		if name, _, ok := cut(rest); ok && string(name) == sessionBind {
			return askFor(agent, message, success, extensionFailure)
		}
	}
	return []byte{failure}, nil
}

func (s *Signer) list(agent io.ReadWriter) ([]byte, error) {
	all, err := List(agent)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(k PublicKey) bool { return !s.has(k.Blob) })
	answer := binary.BigEndian.AppendUint32([]byte{identitiesAnswer}, uint32(len(all)))
	for _, k := range all {
		answer = appendString(appendString(answer, k.Blob), []byte(k.Comment))
	}
	return answer, nil
}

// signsWith returns the key of a request for a signature: a key, the text, and flags. ok is false if a program may not sign with it.
func (s *Signer) signsWith(request []byte) (key PublicKey, ok bool) {
	blob, rest, ok := cut(request)
	if !ok {
		return key, false
	}
	_, flags, ok := cut(rest)
	i := slices.IndexFunc(s.Keys, func(k PublicKey) bool { return bytes.Equal(k.Blob, blob) })
	if !ok || len(flags) != 4 || i < 0 {
		return key, false
	}
	return s.Keys[i], true
}

func (s *Signer) has(blob []byte) bool {
	return slices.ContainsFunc(s.Keys, func(k PublicKey) bool { return bytes.Equal(k.Blob, blob) })
}

// askFor returns an agent's answer if it is of one of kinds, else a failure.
func askFor(agent io.ReadWriter, message []byte, kinds ...byte) ([]byte, error) {
	answer, err := ask(agent, message)
	if err != nil || slices.Contains(kinds, answer[0]) {
		return answer, err
	}
	return []byte{failure}, nil
}

func ask(agent io.ReadWriter, message []byte) ([]byte, error) {
	if err := write(agent, message); err != nil {
		return nil, err
	}
	answer, err := read(agent)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return answer, err
}

// read returns the next message, which has at least its kind.
func read(from io.Reader) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size == 0 || size > messageMost {
		return nil, errMessage
	}
	message := make([]byte, size)
	if _, err := io.ReadFull(from, message); err != nil {
		return nil, io.ErrUnexpectedEOF
	}
	return message, nil
}

func write(to io.Writer, message []byte) error {
	_, err := to.Write(appendString(nil, message))
	return err
}

// cut takes a string off the front of a message.
func cut(message []byte) (text, rest []byte, ok bool) {
	if len(message) < 4 {
		return nil, nil, false
	}
	size := binary.BigEndian.Uint32(message)
	if uint64(size) > uint64(len(message)-4) {
		return nil, nil, false
	}
	return message[4 : 4+size], message[4+size:], true
}

func appendString(message, text []byte) []byte {
	return append(binary.BigEndian.AppendUint32(message, uint32(len(text))), text...)
}
