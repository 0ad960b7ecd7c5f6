//go:build linux

package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/egressd/egressd/audit"
	"github.com/egressd/egressd/cmd/egressd/internal/cmd"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/testfiles"
	"github.com/egressd/egressd/logs"
	"github.com/egressd/egressd/logs/export"
)

// hostileLog is a log whose records have one text wherever a sandbox chooses one, as
// egressd writes it, and, were that to change, as characters.
func hostileLog(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir() + "/audit"
	log, err := audit.Create(dir, audit.Options{Durability: audit.Process})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	n := 0
	for _, text := range testfiles.Hostile {
		for _, stored := range []string{asBytes(text), asCharacters(text)} {
			for _, kind := range []string{"open", "request", "dns", "refused", "close", "signal", "policy", "later"} {
				n++
				line := strings.NewReplacer("KIND", kind, "ID", fmt.Sprintf("01F%07d", n), "ACTION", []string{"allow", "deny", "ask"}[n%3], "TEXT", stored).Replace(
					`{"kind":"KIND","flow":"ID","sandbox":TEXT,"container":{"id":"0123456789ab","name":TEXT},"via":TEXT,"src":"127.0.0.1:1","dst":{"host":TEXT,"port":443,"class":TEXT},` +
						`"tls":{"sni":TEXT,"alpn":[TEXT]},"http":{"method":TEXT,"path":TEXT},"dns":{"name":TEXT,"type":TEXT},"process":{"pid":1,"exe":TEXT,"argv":[TEXT]},` +
						`"decision":{"action":"ACTION","rule":TEXT,"layer":TEXT,"reason":TEXT,"class":TEXT,"allowed_if":[TEXT]},"shadow":{"action":TEXT,"rule":TEXT,"reason":TEXT,"policy":TEXT},` +
						`"signal":{"what":TEXT,"name":TEXT,"where":TEXT,"encoding":TEXT},"bytes":{"up":1000000,"down":2},"outcome":TEXT,"raw":TEXT,"note":TEXT}`)
				if len(line) > 8000 {
					continue // more than a record can be
				}
				if _, err := log.Append([]byte(line)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return dir
}

func asBytes(s string) string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(rune(s[i]))
	}
	return asCharacters(b.String())
}

func asCharacters(s string) string {
	text, _ := json.Marshal(s) // a string is always fine
	return string(printable.JSON(text))
}

// TestNoViewLetsASandboxSpeak has every view of a log be printed: no text that a
// sandbox chose does anything to a terminal, looks like columns that it is not, or is
// a command for the runner of a CI job.
func TestNoViewLetsASandboxSpeak(t *testing.T) {
	dir := hostileLog(t)
	views := []string{
		"log", "log --top 0", "log --json", "log kind:open", "log kind:dns", "log kind:signal", "log kind:close", "log kind:refused", "log kind:later", "log kind:policy", "log --summary", "log --summary --json",
		"log --markdown --top 0", "log --summary --top 0", "log signals --top 0", "log signals --json", "why 01F0000001", "why 01F", "why 01F0000011 --json",
		"log show 01F0000002", "log show 01F0000098", "log show 01F0000154 --json", "policy suggest", "log by proc,host --json", "log by nothing-" + testfiles.Hostile[0], "log verdict:" + testfiles.Hostile[0],
	}
	for _, field := range logs.FieldNames {
		views = append(views, "log by "+field+",who --top 0")
	}
	for _, format := range append(export.Formats(), "csv") {
		views = append(views, "log export --format "+format)
	}
	for _, view := range views {
		var out, talk strings.Builder
		cmd.Run(append(strings.Fields(view), "--dir", dir), &out, &talk)
		if out.Len()+talk.Len() == 0 {
			t.Errorf("%q printed nothing", view)
		}
		for line := range strings.Lines(out.String() + talk.String()) {
			end := "\n"
			if strings.HasSuffix(view, "--format csv") {
				end = "\r\n"
			}
			if why := speaks(strings.TrimSuffix(line, end), view); why != "" {
				t.Errorf("%q: %s: %.300q", view, why, line)
				break
			}
		}
	}
}

// gaps are what a text becomes that has the space between two columns in it.
var gaps = regexp.MustCompile(`npm {2,}preset|preset:npm {2,}09|x {2,}✓|allow {2,}y`)

var inNoColumns = regexp.MustCompile(`^(why|log show|log signals|log export)`)

// runnerCommand is a command of Azure Pipelines and older GitHub runners, which they take wherever it stands in a line.
var runnerCommand = regexp.MustCompile(`##[A-Za-z]*\[`)

// speaks says what is wrong with a line of a view. What some say stands in no columns.
func speaks(line, view string) string {
	start, isJSON := strings.TrimSpace(line), strings.Contains(view, "--json")
	columns := !isJSON && !inNoColumns.MatchString(view)
	switch {
	case !utf8.ValidString(line):
		return "bytes that are no UTF-8"
	case strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) || unicode.IsMark(r) || r == '\u3164' }):
		return "a character that is no print"
	case runnerCommand.MatchString(line), strings.HasPrefix(start, "::") && strings.Contains(start[2:], "::"):
		return "a command for a runner"
	case columns && gaps.MatchString(line):
		return "columns that are none"
	case isJSON && strings.HasPrefix(start, "{") && !json.Valid([]byte(start)):
		return "no JSON"
	}
	return ""
}
