package log

import (
	"bytes"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/e2e/world"
	"github.com/egressd/egressd/internal/lab"
	"github.com/egressd/egressd/record"
)

// injections are what a sandbox would write to begin a line of its own in the log, to
// write into the terminal of its reader, or to break its parser.
var injections = map[string]string{
	"a line of its own":      "x\n" + `{"v":1,"seq":0,"time":"2026-11-20T09:51:38.362114Z","kind":"start"}` + "\n",
	"a member of its own":    `x","decision":{"action":"allow"},"a":"`,
	"escapes":                `\u000a\"},{"\\`,
	"a terminal":             "\x1b[2J\x1b]0;x\x07\x9b31m",
	"line separators":        "a\u2028b\u2029c\u0085d",
	"bytes that are no text": "\xff\xfe\xc3(\xed\xa0\x80\xf8\x88",
	"other controls":         "\r\t\x00\x7f\b",
	"a right-to-left mark":   "a\u202egnp.exe",
	"a megabyte":             strings.Repeat("A", 1<<20),
}

// An injector sends bytes through a way in, and says what of them has to be in a record, in
// which field.
type injector struct {
	name string
	send func(d *world.Daemon, text string) (has string)
	in   func(r *record.Record) string
}

func raw(r *record.Record) string { return r.Raw }

func injectors() []injector {
	return []injector{
		{"the host of CONNECT", func(d *world.Daemon, text string) string {
			return write(d, "CONNECT "+text+":443 HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
		}, raw},
		{"the method", func(d *world.Daemon, text string) string {
			return write(d, "G"+text+"ET http://allowed.test/ HTTP/1.1\r\nHost: allowed.test\r\n\r\n")
		}, raw},
		{"a field", func(d *world.Daemon, text string) string {
			write(d, "GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nX"+text+": "+text+"\r\n\r\n")
			return ""
		}, nil},
		{"the user of a proxy", func(d *world.Daemon, text string) string {
			user := base64.StdEncoding.EncodeToString([]byte(text[:min(len(text), 500)] + ":" + "x"))
			write(d, "CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\nProxy-Authorization: Basic "+user+"\r\n\r\n")
			return ""
		}, nil},
		{"a path", func(d *world.Daemon, text string) string {
			write(d, "GET http://evil.test/"+text+" HTTP/1.1\r\nHost: evil.test\r\n\r\n")
			return ""
		}, nil},
		{"a name of SOCKS", func(d *world.Daemon, text string) string {
			text = text[:min(len(text), 255)]
			write(d, "\x05\x01\x00"+"\x05\x01\x00\x03"+string(byte(len(text)))+text+"\x01\xbb")
			return text
		}, func(r *record.Record) string {
			if r.Dst != nil {
				return r.Dst.Host
			}
			return r.Raw
		}},
		{"a user of SOCKS", func(d *world.Daemon, text string) string {
			text = text[:min(len(text), 255)]
			write(d, "\x05\x01\x02\x01"+string(byte(len(text)))+text+"\x01x"+"\x05\x01\x00\x03\x09evil.test\x01\xbb")
			return ""
		}, nil},
		{"a server name", func(d *world.Daemon, text string) string {
			c, status, err := d.OpenTunnel("allowed.test:443", "")
			if err != nil || status != 200 {
				return fmt.Sprintf("CONNECT: %d %v", status, err)
			}
			defer c.Close()
			c.SetDeadline(time.Now().Add(world.Patience))
			tls.Client(c, &tls.Config{ServerName: text[:min(len(text), 200)], InsecureSkipVerify: true}).Handshake()
			return "" // a hello that is malformed is not recorded
		}, nil},
		{"a question", func(d *world.Daemon, text string) string {
			label := text[:min(len(text), 63)]
			question(d, "\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00"+string(byte(len(label)))+label+"\x04evil\x04test\x00\x00\x01\x00\x01")
			return label
		}, func(r *record.Record) string {
			if r.DNS != nil {
				return r.DNS.Name
			}
			return r.Raw
		}},
	}
}

// write sends bytes to the proxy, and waits until it has answered all.
func write(d *world.Daemon, text string) string {
	c, err := d.Dial()
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(world.Patience))
	go io.WriteString(c, text)
	io.Copy(io.Discard, c) // it closes what it refuses
	return text
}

func question(d *world.Daemon, wire string) {
	c, err := d.World.Sandbox.Dial("udp", net.JoinHostPort(lab.GatewayIPv4, strconv.Itoa(world.NamesPort)))
	if err != nil {
		return
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(world.Patience))
	io.WriteString(c, wire)
	c.Read(make([]byte, 512))
}

// bytesOf are the bytes that a text of a record stands for: each character is one.
func bytesOf(text string) string {
	var b []byte
	for _, r := range text {
		if r > 0xff {
			return "a character that is no byte: " + text
		}
		b = append(b, byte(r))
	}
	return string(b)
}

// TestNothingIsWrittenIntoTheLog has a sandbox send such texts as every name and path that
// it can choose. Each record is one line of printable ASCII, and its reader gets the bytes
// back as they were sent.
func TestNothingIsWrittenIntoTheLog(t *testing.T) {
	world.Covers(t, "AU-21")
	d := world.Start(t, world.WithNames(world.PolicyText(t, "P0")))
	for what, text := range injections {
		for _, way := range injectors() {
			mark, err := d.Log.Mark()
			if err != nil {
				t.Fatal(err)
			}
			sent := way.send(d, text)
			var records []record.Record
			found := func() bool {
				records, err = d.Log.Since(mark)
				return err != nil || len(records) > 0 && (way.in == nil || kept(records, way, sent))
			}
			if !world.Eventually(world.Settling, found) || err != nil {
				t.Errorf("%s as %s: the records do not have %q: %v\n%s", what, way.name, clipTo(sent, 80), err, bytes.Join(d.Log.Lines[mark:], []byte("\n")))
			}
		}
	}
	for _, p := range d.Log.Flawed() {
		t.Errorf("the audit log: %s", p)
	}
	for _, line := range d.Log.Lines {
		if bytes.Contains(line, []byte(`"action":"allow"},"a"`)) {
			t.Errorf("a member got out of its text: %s", line)
		}
	}
}

// kept reports whether a record has what was sent, or as much of it as a record holds: names
// are written in lower case, and what looks like the value of a field is cut out.
func kept(records []record.Record, way injector, sent string) bool {
	start := strings.ToLower(sent[:min(len(sent), 60)])
	for i := range records {
		has := strings.ToLower(bytesOf(way.in(&records[i])))
		before, _, redacted := strings.Cut(has, "[redacted]")
		if strings.Contains(has, start) || redacted && len(before) > 5 && strings.HasPrefix(start, before) {
			return true
		}
	}
	return false
}

func clipTo(s string, most int) string { return s[:min(len(s), most)] }
