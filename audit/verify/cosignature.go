package verify

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/egressd/egressd/audit/internal/format"
)

// keyCosignature is the algorithm of a witness's key: timestamped Ed25519 (C2SP
// tlog-cosignature, cosignature/v1).
const keyCosignature = 4

// A WitnessKey is the public key of a witness, by which its cosignatures are known.
// The zero value has signed nothing.
type WitnessKey struct {
	Name string // of the witness
	text string
	id   [4]byte
	key  ed25519.PublicKey
}

// String returns the key as it is written: a vkey of C2SP signed-note.
func (k WitnessKey) String() string { return k.text }

// ParseWitnessKey reads the public key of a witness: its name, the key hash in eight
// hexadecimal digits and the key in base64, with + between them.
func ParseWitnessKey(text string) (k WitnessKey, err error) {
	name, rest, _ := strings.Cut(text, "+")
	digits, encoded, _ := strings.Cut(rest, "+")
	key, err := format.Decode64(encoded)
	switch {
	case err != nil || len(digits) != 8 || len(key) < 2 || !isSignerName(name):
		return k, errors.New("it is not the public key of a witness, which is written NAME+HASH+KEY")
	case key[0] == format.KeyAlgorithm:
		return k, errors.New("it is a key for signatures, not for cosignatures: its algorithm is 1, and that of a witness is 4")
	case key[0] != keyCosignature || len(key) != 1+ed25519.PublicKeySize:
		return k, fmt.Errorf("its algorithm is %d, and only cosignature/v1, which is 4, is known", key[0])
	}
	k = WitnessKey{Name: name, text: text, key: key[1:]}
	sum := sha256.Sum256(append([]byte(name+"\n"), key...))
	copy(k.id[:], sum[:])
	if fmt.Sprintf("%x", k.id) != digits {
		return WitnessKey{}, errors.New("its hash is not that of its name and key: a letter of it may be missing or wrong")
	}
	return k, nil
}

// isSignerName reports whether a name can stand in a signature line.
func isSignerName(name string) bool {
	return name != "" && utf8.ValidString(name) && !strings.ContainsFunc(name, func(r rune) bool { return r == '+' || unicode.IsSpace(r) || !unicode.IsPrint(r) })
}

// A Cosignature states that a witness saw a tree of this size and root at this time, that it had seen no newer tree of the
// log, and that the log had only grown.
type Cosignature struct {
	Size int64
	Time time.Time
}

var errNoCosignature = errors.New("the witness has not signed it")

// line returns the signature that says it is the witness's under a note: 8 bytes of
// time and 64 of signature, if its form is right. The first counts.
func (k WitnessKey) line(signatures []string) (signature []byte, there bool) {
	for _, line := range signatures {
		encoded, mine := strings.CutPrefix(line, "— "+k.Name+" ")
		if !mine || k.Name == "" {
			continue
		}
		if b, err := format.Decode64(encoded); err == nil && len(b) >= 4 && [4]byte(b) == k.id {
			return b[4:], true
		}
	}
	return nil, false
}

// check finds and verifies the cosignature under a checkpoint. The error is
// errNoCosignature where there is none, and [format.ErrSignature] where it is wrong.
func (k WitnessKey) check(text string, signatures []string) (at time.Time, err error) {
	b, there := k.line(signatures)
	if !there {
		return at, errNoCosignature
	}
	if len(b) != 8+ed25519.SignatureSize {
		return at, format.ErrSignature
	}
	seconds := binary.BigEndian.Uint64(b)
	message := []byte("cosignature/v1\ntime " + strconv.FormatUint(seconds, 10) + "\n" + text)
	if seconds == 0 || seconds > math.MaxInt64 || !ed25519.Verify(k.key, message, b[8:]) {
		return at, format.ErrSignature
	}
	return time.Unix(int64(seconds), 0).UTC(), nil
}

// Cosigned adds to a checkpoint, a signed note, what a witness has answered to it:
// signature lines, of which those of other keys count for nothing. The error says that its own is not there,
// or wrong.
func (k WitnessKey) Cosigned(checkpoint, answer []byte) ([]byte, Cosignature, error) {
	var c Cosignature
	text, _, err := format.SplitNote(checkpoint)
	if err != nil {
		return nil, c, err
	}
	head, _, err := format.ParseHead(text)
	if err != nil {
		return nil, c, err
	}
	for line := range strings.SplitSeq(string(answer), "\n") {
		at, err := k.check(text, []string{line})
		if err == errNoCosignature {
			continue
		}
		c = Cosignature{head.Size, at}
		whole := append(append(bytes.Clone(checkpoint), line...), '\n')
		if err == nil && len(whole) > format.MaxNote {
			err = format.ErrNote
		}
		return whole, c, err
	}
	return nil, c, errNoCosignature
}

// CheckpointSize returns how many records a checkpoint of a log is for, and which
// log that is.
func CheckpointSize(checkpoint []byte) (origin string, size int64, err error) {
	c, err := format.ReadNote(checkpoint)
	if err != nil {
		return "", 0, err
	}
	return c.Origin, c.Size, nil
}
