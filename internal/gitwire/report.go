package gitwire

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Media types of a push over smart HTTP (gitprotocol-http).
const (
	PushType   = "application/x-git-receive-pack-request"
	ReportType = "application/x-git-receive-pack-result"
)

// Reports reports whether the client asks for the fate of each ref, so that [Push.Refuse] is an answer to it.
func (p *Push) Reports() bool {
	return len(p.Commands) > 0 && (p.Has("report-status") || p.Has("report-status-v2"))
}

// Refuse returns the answer of a server that has carried out none of the commands. git prints reason behind the name of each
// ref, and the lines of message before. Refuse cuts both, and replaces control characters by spaces.
func (p *Push) Refuse(message string, reason func(Command) string) []byte {
	report := packet("unpack ok\n")
	for _, c := range p.Commands {
		report += packet("ng " + c.Ref + " " + plain(reason(c), reasonMost) + "\n")
	}
	report += flush
	most := 0
	switch {
	case p.Has("side-band-64k"):
		most = packetMost - len("0000") - 1
	case p.Has("side-band"):
		most = 999 - len("0000")
	default:
		return []byte(report)
	}
	out := ""
	for line := range strings.SplitSeq(strings.TrimSpace(message), "\n") {
		out += packet("\x02" + plain(line, messageMost) + "\n")
	}
	for len(report) > 0 {
		n := min(most, len(report))
		out += packet("\x01" + report[:n])
		report = report[n:]
	}
	return []byte(out + flush)
}

const (
	flush       = "0000"
	reasonMost  = 240
	messageMost = 800
	packetMost  = 65520 // LARGE_PACKET_MAX of git
)

func packet(text string) string { return fmt.Sprintf("%04x%s", len("0000")+len(text), text) }

// plain is text on one line, at most n bytes of it.
func plain(text string, n int) string {
	text = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, text)
	if len(text) <= n {
		return text
	}
	for n -= len("…"); !utf8.RuneStart(text[n]); n-- {
	}
	return text[:n] + "…"
}
