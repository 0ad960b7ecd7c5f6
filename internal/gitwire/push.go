// Package gitwire reads what git sends to a server to push (gitprotocol-pack, gitprotocol-http), before any of it is sent on,
// and writes the answer by which git tells a user that a server has refused it. It decides nothing, and reads no objects: that
// a push is no fast-forward, or which files it changes, cannot be seen from its commands.
//
//	p, err := gitwire.ParsePush(body, false) // errors.Is(err, gitwire.ErrShort): more of the body is needed
package gitwire

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
)

// A Push is the commands in front of the pack of a request to git-receive-pack.
type Push struct {
	// Probe says that the body is one flush packet. git sends it in front of a large push, to learn whether it may.
	Probe bool

	Commands     []Command
	Options      []string // push options
	Capabilities []string // those that the client asks for
}

// A Command sets a ref from one object to another. A zero ID stands for no object.
type Command struct{ Old, New, Ref string }

// Deletes reports whether the command removes the ref.
func (c Command) Deletes() bool { return strings.Trim(c.New, "0") == "" }

// Creates reports whether the server carries the command out only if there is no such ref.
func (c Command) Creates() bool { return strings.Trim(c.Old, "0") == "" }

// String is the line that git gives to a pre-receive hook.
func (c Command) String() string { return c.Old + " " + c.New + " " + c.Ref }

const (
	sectionMost  = 64 << 10 // bytes in front of the pack
	commandsMost = 1536     // bytes of the lines of all commands, which one record has to hold
	optionsMost  = 64
)

// ErrShort is returned for the beginning of a push that ends before its pack. The caller reads on.
var ErrShort = errors.New("the commands of the push are not complete")

// ParsePush reads the beginning of a body, which may be compressed by gzip. whole says that it is the whole body. What two
// servers could read in two ways is an error.
func ParsePush(body []byte, whole, compressed bool) (*Push, error) {
	r := &pushReader{below: bytes.NewReader(body), whole: whole}
	r.in = r.below
	if compressed {
		unpacked, err := gzip.NewReader(r.below)
		if err != nil {
			return nil, r.short(err)
		}
		unpacked.Multistream(false) // git's own server reads no further
		r.in = unpacked
	}
	p, err := r.push()
	if err != nil {
		return nil, r.short(err)
	}
	return p, nil
}

type pushReader struct {
	in    io.Reader
	below *bytes.Reader // as the body was sent; in reads from it
	whole bool
	taken int
}

// short says of the end of what was read whether more may follow.
func (r *pushReader) short(err error) error {
	switch {
	case !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		return err
	case r.whole || r.below.Len() > 0:
		return errors.New("the body ends within the commands of the push")
	}
	return ErrShort
}

var (
	errFollows  = errors.New("something follows a push that has no pack")
	errNoPack   = errors.New("the commands of the push are not followed by a pack")
	errTooMany  = fmt.Errorf("the push names more refs than one record holds, which is %d bytes of them; push fewer at a time", commandsMost)
	errTooLarge = fmt.Errorf("the commands of the push have more than %d bytes", sectionMost)
)

func (r *pushReader) push() (*Push, error) {
	p := new(Push)
	size, lines := 0, 0
	for {
		line, flush, err := r.packet()
		switch {
		case err != nil:
			return nil, err
		case flush && lines == 0:
			p.Probe = true
			return p, r.end()
		case flush && len(p.Commands) == 0:
			return nil, errors.New("the push has no command")
		case flush:
			return p, r.rest(p)
		}
		lines++
		if err := p.line(line); err != nil {
			return nil, err
		}
		if n := len(p.Commands); n > 0 {
			if size += written(p.Commands[n-1].String()); size > commandsMost {
				return nil, errTooMany
			}
		}
	}
}

// written is how long a record writes a text.
func written(s string) (n int) {
	for i := range len(s) {
		switch c := s[i]; {
		case c < 0x20 || c > 0x7e:
			n += len(`\u0000`)
		case c == '"':
			n += 2
		default:
			n++
		}
	}
	return n + len(`"",`)
}

// line reads one line of the commands.
func (p *Push) line(line string) error {
	if id, ok := strings.CutPrefix(line, "shallow "); ok && len(p.Commands) == 0 {
		if !objectID(id) {
			return errors.New("a shallow line of the push has no object ID")
		}
		return nil
	}
	if strings.HasPrefix(line, "push-cert") {
		return errors.New("the push is signed (push-cert), and egressd does not read its certificate; push without --signed")
	}
	command, capabilities, listed := strings.Cut(line, "\x00")
	switch {
	case listed && len(p.Commands) > 0:
		return errors.New("the push lists its capabilities twice")
	case listed:
		if err := p.capabilities(capabilities); err != nil {
			return err
		}
	}
	c, err := parseCommand(command)
	if err != nil {
		return err
	}
	if len(c.Old) != p.digits() || len(c.New) != p.digits() {
		return errors.New("the object IDs of the push have another length than its object format")
	}
	p.Commands = append(p.Commands, c)
	return nil
}

// harmless holds the known capabilities (gitprotocol-capabilities) that do not change how a server reads the commands. The
// value is true where a capability has one.
var harmless = map[string]bool{
	"report-status": false, "report-status-v2": false, "delete-refs": false, "quiet": false, "no-progress": false, "atomic": false,
	"ofs-delta": false, "no-thin": false, "thin-pack": false, "side-band": false, "side-band-64k": false, "push-options": false,
	"agent": true, "session-id": true, "object-format": true,
}

func (p *Push) capabilities(list string) error {
	if len(list) > 1024 || strings.ContainsFunc(list, func(c rune) bool { return c < ' ' || c > '~' }) {
		return errors.New("the push has a list of capabilities that is none")
	}
	for c := range strings.SplitSeq(list, " ") {
		name, _, valued := strings.Cut(c, "=")
		switch value, known := harmless[name]; {
		case c == "":
			continue
		case !known || valued != value:
			return errors.New("the push asks for a capability that egressd does not know")
		case slices.ContainsFunc(p.Capabilities, func(other string) bool { return other == name || strings.HasPrefix(other, name+"=") }):
			return errors.New("the push asks for a capability twice")
		case name == "object-format" && c != "object-format=sha1" && c != sha256:
			return errors.New("the push has an object format that is neither sha1 nor sha256")
		}
		p.Capabilities = append(p.Capabilities, c)
	}
	return nil
}

const sha256 = "object-format=sha256"

// Has reports whether the client asks for a capability.
func (p *Push) Has(capability string) bool { return slices.Contains(p.Capabilities, capability) }

// digits is the length of an object ID.
func (p *Push) digits() int {
	if p.Has(sha256) {
		return 64
	}
	return 40
}

func parseCommand(text string) (c Command, err error) {
	parts := strings.SplitN(text, " ", 3)
	switch {
	case len(parts) < 3, !objectID(parts[0]), !objectID(parts[1]):
		return c, errors.New("a line of the push is no command: two object IDs and a ref")
	case CheckRef(parts[2]) != nil:
		return c, fmt.Errorf("a command of the push: %w", CheckRef(parts[2]))
	}
	c = Command{Old: parts[0], New: parts[1], Ref: parts[2]}
	if c.Creates() && c.Deletes() {
		return c, errors.New("a command of the push neither creates a ref nor removes one")
	}
	return c, nil
}

func objectID(text string) bool {
	return (len(text) == 40 || len(text) == 64) && strings.Trim(text, "0123456789abcdef") == ""
}

// rest reads what has to follow the commands: the push options if there are any, and a pack if an object is needed.
func (r *pushReader) rest(p *Push) error {
	if p.Has("push-options") {
		if err := r.options(p); err != nil {
			return err
		}
	}
	if !slices.ContainsFunc(p.Commands, func(c Command) bool { return !c.Deletes() }) {
		return r.end()
	}
	var signature [4]byte
	if _, err := io.ReadFull(r.in, signature[:]); err != nil {
		return err
	}
	if string(signature[:]) != "PACK" {
		return errNoPack
	}
	return nil
}

func (r *pushReader) options(p *Push) error {
	for {
		line, flush, err := r.packet()
		switch {
		case err != nil || flush:
			return err
		case len(p.Options) == optionsMost:
			return fmt.Errorf("the push has more than %d options", optionsMost)
		case line == "" || strings.ContainsFunc(line, func(c rune) bool { return c < ' ' || c == 0x7f }):
			return errors.New("an option of the push has a control character, or is empty")
		}
		p.Options = append(p.Options, line)
	}
}

// end reports an error if anything follows.
func (r *pushReader) end() error {
	n, err := io.ReadFull(r.in, make([]byte, 1))
	switch {
	case n > 0, errors.Is(err, io.EOF) && r.below.Len() > 0:
		return errFollows
	case errors.Is(err, io.EOF) && r.whole:
		return nil
	}
	return err
}

// packet reads one pkt-line, without the newline that may end it.
func (r *pushReader) packet() (line string, flush bool, err error) {
	var digits [4]byte
	if _, err := io.ReadFull(r.in, digits[:]); err != nil {
		return "", false, err
	}
	n, err := strconv.ParseUint(string(digits[:]), 16, 16)
	switch {
	case err != nil, n > 0 && n <= 4:
		return "", false, errors.New("a packet of the push has a length that none has")
	case n == 0:
		return "", true, nil
	}
	if r.taken += int(n); r.taken > sectionMost {
		return "", false, errTooLarge
	}
	b := make([]byte, n-4)
	if _, err := io.ReadFull(r.in, b); err != nil {
		return "", false, err
	}
	return strings.TrimSuffix(string(b), "\n"), false, nil
}
