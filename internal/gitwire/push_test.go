package gitwire

import (
	"bytes"
	"compress/gzip"
	"crypto/sha1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

const (
	zero   = "0000000000000000000000000000000000000000"
	first  = "1111111111111111111111111111111111111111"
	second = "2222222222222222222222222222222222222222"
	asked  = "\x00 report-status-v2 side-band-64k object-format=sha1 agent=git/2.39.5" // as git sends it
	agent  = "refs/heads/agent/x"
)

// emptyPack is a pack without objects, which git sends if the server has them all.
func emptyPack() string {
	head := "PACK\x00\x00\x00\x02\x00\x00\x00\x00"
	sum := sha1.Sum([]byte(head))
	return head + string(sum[:])
}

func packed(text string) []byte {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte(text))
	w.Close()
	return b.Bytes()
}

func TestParsePush(t *testing.T) {
	create, update, remove := zero+" "+first+" "+agent, first+" "+second+" refs/heads/main", first+" "+zero+" refs/tags/v1"
	for _, row := range []struct {
		says, body string
		commands   []string
		options    []string
	}{
		{"one create", packet(create+asked) + flush + emptyPack(), []string{create}, nil},
		{"lines that end", packet(create+asked+"\n") + packet(update+"\n") + flush + emptyPack(), []string{create, update}, nil},
		{"a delete alone", packet(remove+asked) + flush, []string{remove}, nil},
		{"a delete beside an update", packet(remove+asked) + packet(update) + flush + emptyPack(), []string{remove, update}, nil},
		{"shallow", packet("shallow "+first+"\n") + packet("shallow "+second) + packet(create+asked) + flush + emptyPack(), []string{create}, nil},
		{"options", packet(create+asked+" push-options") + flush + packet("ci.skip\n") + packet("topic=x") + flush + emptyPack(), []string{create}, []string{"ci.skip", "topic=x"}},
		{"no option", packet(create+asked+" push-options") + flush + flush + emptyPack(), []string{create}, nil},
		{"atomic, upper case in the length", strings.ToUpper(packet(create + asked + " atomic")[:4]) + packet(create + asked + " atomic")[4:] + flush + emptyPack(), []string{create}, nil},
		{"sha256", packet(strings.Repeat("0", 64)+" "+strings.Repeat("a", 64)+" "+agent+"\x00report-status object-format=sha256") + flush + emptyPack(), []string{strings.Repeat("0", 64) + " " + strings.Repeat("a", 64) + " " + agent}, nil},
		{"no capabilities", packet(create) + flush + emptyPack(), []string{create}, nil},
	} {
		for _, compressed := range []bool{false, true} {
			body := []byte(row.body)
			if compressed {
				body = packed(row.body)
			}
			p, err := ParsePush(body, true, compressed)
			if err != nil {
				t.Errorf("%s, compressed %t: %v", row.says, compressed, err)
				continue
			}
			var commands []string
			for _, c := range p.Commands {
				commands = append(commands, c.String())
			}
			if !slices.Equal(commands, row.commands) || !slices.Equal(p.Options, row.options) || p.Probe {
				t.Errorf("%s: %q with options %q, want %q with %q", row.says, commands, p.Options, row.commands, row.options)
			}
			partsOf(t, row.says, body, compressed)
		}
	}
}

// partsOf reads each beginning of a body: until all is there, nothing is decided.
func partsOf(t *testing.T, says string, body []byte, compressed bool) {
	decided := false
	for n := range body {
		switch _, err := ParsePush(body[:n], false, compressed); {
		case err == nil:
			decided = true
		case !errors.Is(err, ErrShort) || decided:
			t.Errorf("%s: after %d of %d bytes: %v", says, n, len(body), err)
			return
		}
		if _, err := ParsePush(body[:n], true, compressed); !decided && (err == nil || errors.Is(err, ErrShort)) {
			t.Errorf("%s: a body of the first %d bytes: %v", says, n, err)
			return
		}
	}
}

func TestAProbeIsFourBytes(t *testing.T) {
	if p, err := ParsePush([]byte(flush), true, false); err != nil || !p.Probe {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := ParsePush([]byte(flush), false, false); !errors.Is(err, ErrShort) {
		t.Errorf("more may follow: %v", err)
	}
	for _, body := range []string{flush + flush, flush + packet(zero+" "+first+" refs/heads/main"+asked) + flush + emptyPack(), flush + "\n"} {
		if p, err := ParsePush([]byte(body), true, false); err == nil {
			t.Errorf("%q: %+v", body, p)
		}
	}
	if p, err := ParsePush(append(packed(flush), packed("more")...), true, true); err == nil {
		t.Errorf("a second member: %+v", p)
	}
}

func TestWhatIsNoPush(t *testing.T) {
	create := zero + " " + first + " " + agent
	ok := packet(create + asked)
	many := ""
	for i := range 30 {
		many += packet(fmt.Sprintf("%s %s refs/heads/agent/%d", zero, first, i))
	}
	for says, body := range map[string]string{
		"the length 0001":                     "0001" + ok + flush + emptyPack(),
		"the length 0003":                     "0003" + ok + flush + emptyPack(),
		"an empty packet":                     "0004" + ok + flush + emptyPack(),
		"the length fff1":                     "fff1" + strings.Repeat("x", 0xfff1-4) + flush,
		"the length 00zz":                     "00zz" + ok + flush + emptyPack(),
		"a length with a sign":                "+010" + strings.Repeat("x", 12) + flush,
		"a packet that is too short":          "0032" + create + flush,
		"a certificate":                       packet("push-cert\x00report-status") + packet("certificate version 0.1\n") + flush + emptyPack(),
		"a certificate after a command":       ok + packet("push-cert\x00report-status") + flush + emptyPack(),
		"capabilities twice":                  ok + packet(create+"\x00push-options") + flush + packet("ci.skip") + flush + emptyPack(),
		"a capability that nobody knows":      packet(create+"\x00report-status mirror") + flush + emptyPack(),
		"a capability with a value":           packet(create+"\x00push-options=1") + flush + emptyPack(),
		"a capability behind a space of UTF8": packet(create+"\x00agent=x\u00a0push-options") + flush + emptyPack(),
		"a second NUL":                        packet(create+"\x00report-status\x00push-options") + flush + emptyPack(),
		"upper case in an ID":                 packet(zero+" "+strings.Repeat("A", 40)+" "+agent+asked) + flush + emptyPack(),
		"a short ID":                          packet(zero+" "+first[:39]+" "+agent+asked) + flush + emptyPack(),
		"an ID of sha256":                     packet(strings.Repeat("0", 64)+" "+strings.Repeat("a", 64)+" "+agent+asked) + flush + emptyPack(),
		"neither created nor removed":         packet(zero+" "+zero+" "+agent+asked) + flush,
		"a shallow line after a command":      ok + packet("shallow "+first) + flush + emptyPack(),
		"no pack":                             ok + flush,
		"two lists of commands":               ok + flush + packet(zero+" "+first+" refs/heads/main"+asked) + flush + emptyPack(),
		"bytes before the pack":               ok + flush + "\n" + emptyPack(),
		"options that nobody announced":       ok + flush + packet("ci.skip") + flush + emptyPack(),
		"a delete with a pack":                packet(first+" "+zero+" "+agent+asked) + flush + emptyPack(),
		"no command":                          packet("shallow "+first) + flush,
		"commands without end":                strings.Repeat(packet("shallow "+first), 2000),
		"more than a record holds":            packet(zero+" "+first+" refs/heads/agent/y"+asked) + many + flush + emptyPack(),
		"options without end":                 packet(create+asked+" push-options") + flush + strings.Repeat(packet("o"), 100) + flush + emptyPack(),
	} {
		if p, err := ParsePush([]byte(body), true, false); err == nil || errors.Is(err, ErrShort) {
			t.Errorf("%s: %+v, %v", says, p, err)
		}
		if p, err := ParsePush([]byte(body), false, false); err == nil || errors.Is(err, ErrShort) && says != "no pack" && says != "a packet that is too short" {
			t.Errorf("%s, with more to come: %+v, %v", says, p, err)
		}
	}
	for says, ref := range map[string]string{
		"dot dot": "refs/heads/agent/../main", "two slashes": "refs/heads/agent//x", ".lock": "refs/heads/agent/x.lock", "@{": "refs/heads/agent/x@{1}",
		"HEAD": "HEAD", "LF": "refs/heads/agent/x\ny", "a trailing space": "refs/heads/agent/x ", "two newlines": "refs/heads/agent/x\n\n", "no UTF-8": "refs/heads/agent/\xff",
		"a direction override": "refs/heads/agent/\u202ex", "too long": "refs/heads/" + strings.Repeat("x", RefMost),
	} {
		for _, body := range []string{packet(zero+" "+first+" "+ref+asked) + flush, packet(zero+" "+first+" "+agent+asked) + packet(zero+" "+first+" "+ref) + flush} {
			if p, err := ParsePush([]byte(body+emptyPack()), true, false); err == nil {
				t.Errorf("%s: %+v", says, p)
			}
		}
	}
}

// TestAGzipBombIsNotUnpacked: a megabyte of zeros has a kilobyte of gzip.
func TestAGzipBombIsNotUnpacked(t *testing.T) {
	bomb := packed(strings.Repeat(packet("shallow "+first), 1<<20/53))
	if _, err := ParsePush(bomb, false, true); !errors.Is(err, errTooLarge) {
		t.Error(err)
	}
	allowed := packet(zero + " " + first + " " + agent + asked)
	for says, body := range map[string][]byte{
		"commands in two members": append(packed(allowed), packed(flush+emptyPack())...),
		"an empty member first":   append(packed(""), packed(allowed+flush+emptyPack())...),
		"plain text":              []byte(allowed + flush + emptyPack()),
	} {
		if p, err := ParsePush(body, true, true); err == nil {
			t.Errorf("%s: %+v", says, p)
		}
	}
}
