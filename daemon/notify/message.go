package notify

import (
	"cmp"
	"encoding/json"
	"net"
	"net/url"
	"strconv"
	"strings"

	"github.com/egressd/egressd/egress"
	"github.com/egressd/egressd/egress/approvals"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/shell"
)

// A chatMessage is one message about one question.
type chatMessage struct {
	q       *egress.Question
	link    string // by which it is answered, or ""
	command string // flags of egressd answer, each after a space
}

// A markup writes what a sandbox chose so that it stays text: no link, no mention, no image.
type markup struct {
	code func(string) string
	bold func(string) string
}

// Lengths of what a sandbox chose, in bytes.
const (
	requestMost = 200
	wordsMost   = 300
)

// inCode puts text between backquotes, within which chats act on nothing.
func inCode(text string) string {
	return "`" + strings.ReplaceAll(printable.Text(text), "`", "'") + "`"
}

// Slack reads three characters as markup, also between backquotes.
var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

var (
	slack      = markup{func(s string) string { return slackEscapes.Replace(inCode(s)) }, func(s string) string { return "*" + s + "*" }}
	mattermost = markup{inCode, func(s string) string { return "**" + s + "**" }}
	plain      = markup{func(s string) string { return printable.Text(s) }, func(s string) string { return s }}
)

// title stands above a message.
func (n *chatMessage) title() string {
	if n.settled() {
		return "egressd: answered"
	}
	return "egressd: a question"
}

// settled reports whether the question needs no answer any more.
func (n *chatMessage) settled() bool {
	return n.q.State != "" && n.q.State != string(approvals.Pending)
}

// lines say who asks for what, and why; or what was answered.
func (n *chatMessage) lines(m markup) (all []string) {
	q := n.q
	what := net.JoinHostPort(q.Host, strconv.Itoa(int(q.Port)))
	if q.Method != "" || q.Path != "" {
		what = strings.TrimSpace(cmp.Or(q.Method, "any method")+" "+clip(q.Path, requestMost)) + " at " + what
	}
	switch {
	case q.State == string(approvals.Approved):
		return []string{"Answered: sandbox " + m.code(q.Sandbox) + " may reach " + m.code(what) + n.until()}
	case q.State == string(approvals.Rejected):
		return []string{"Answered: sandbox " + m.code(q.Sandbox) + " may not reach " + m.code(what) + n.until()}
	case n.settled():
		return []string{"Nobody has to answer any more: sandbox " + m.code(q.Sandbox) + ", " + m.code(what) + "."}
	}
	all = append(all, "Sandbox "+m.code(q.Sandbox)+" asks for "+m.code(what)+" (rule "+m.code(q.Rule)+").")
	if q.Reason != "" && q.Pattern == "" {
		all = append(all, "The rule says: "+m.code(clip(q.Reason, wordsMost)))
	}
	if q.Words != "" {
		all = append(all, "The program says why. Look at the host, not at the words: "+m.code(strconv.QuoteToASCII(unlinked(clip(q.Words, wordsMost)))))
	}
	return all
}

// until says for what an answer counts.
func (n *chatMessage) until() string {
	scope := n.q.Scope()
	if scope != "" {
		scope = ", " + scope
	}
	if n.q.Saved {
		return scope + "."
	}
	return scope + ", until " + n.q.Until.UTC().Format("2006-01-02 15:04 MST") + "."
}

// inTerminal is how the question is answered without a link.
func (n *chatMessage) inTerminal(m markup) string {
	answer := shell.Program() + " answer " + n.q.ID
	return "In a terminal: " + m.code(answer+" yes"+n.command) + " or " + m.code(answer+" no"+n.command)
}

// unlinked breaks URLs in the words of a sandbox: clients make links of plain text.
func unlinked(text string) string { return strings.ReplaceAll(text, "://", ": //") }

func clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// payload is the body of the request to a receiver of a type.
func (n *chatMessage) payload(kind, to string) ([]byte, error) {
	switch kind {
	case "slack":
		return n.forSlack()
	case "mattermost":
		return n.forMattermost()
	default:
		return n.forNtfy(to)
	}
}

// forSlack is for an incoming webhook of Slack. Its buttons would need an app, so it has a link.
func (n *chatMessage) forSlack() ([]byte, error) {
	lines := n.lines(slack)
	if n.link != "" {
		lines = append(lines, "<"+n.link+"|"+slack.bold("Answer")+"> within an hour.")
	}
	if !n.settled() {
		lines = append(lines, n.inTerminal(slack))
	}
	type text struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		Verbatim bool   `json:"verbatim"` // no mentions, and links only where they are written
	}
	type block struct {
		Type string `json:"type"`
		Text text   `json:"text"`
	}
	return json.Marshal(struct {
		Text        string  `json:"text"` // of notifications
		Blocks      []block `json:"blocks"`
		UnfurlLinks bool    `json:"unfurl_links"`
		UnfurlMedia bool    `json:"unfurl_media"`
	}{"egressd: " + lines[0], []block{{"section", text{"mrkdwn", strings.Join(lines, "\n"), true}}}, false, false})
}

// A choice is an answer that has a button, with its parameters. Each name says what it means.
type choice struct {
	id, name, style string
	terms           map[string]string
}

var (
	allowOnce = choice{"once", "Allow once, what waits now", "default", map[string]string{"answer": "yes", "for": "5m", "once": "true"}}
	allowHour = choice{"allow", "Allow for an hour", "good", map[string]string{"answer": "yes", "for": "1h"}}
	allowRun  = choice{"run", "Allow until this run ends", "default", map[string]string{"answer": "yes", "this_run": "true"}}
	deny      = choice{"deny", "Deny for ten minutes", "danger", map[string]string{"answer": "no"}}
)

// choices are the answers that the question can have now.
func (n *chatMessage) choices() (all []choice) {
	if n.q.Waiting > 0 && n.q.Pattern == "" {
		all = append(all, allowOnce)
	}
	all = append(all, allowHour)
	if n.q.Runs > 0 {
		all = append(all, allowRun)
	}
	return append(all, deny)
}

// forMattermost is for an incoming webhook of Mattermost, whose server sends a POST to the link if somebody presses a button.
func (n *chatMessage) forMattermost() ([]byte, error) {
	type integration struct {
		URL     string            `json:"url"`
		Context map[string]string `json:"context"`
	}
	type action struct {
		ID          string      `json:"id"`
		Type        string      `json:"type"`
		Name        string      `json:"name"`
		Style       string      `json:"style"`
		Integration integration `json:"integration"`
	}
	type attachment struct {
		Fallback string   `json:"fallback"`
		Text     string   `json:"text"`
		Actions  []action `json:"actions,omitempty"`
	}
	lines := n.lines(mattermost)
	a := attachment{Fallback: n.title()}
	if n.link != "" {
		lines = append(lines, "["+mattermost.bold("More answers")+"]("+n.link+") within an hour.")
		for _, c := range n.choices() {
			a.Actions = append(a.Actions, action{c.id, "button", c.name, c.style, integration{n.link, c.terms}})
		}
	}
	if !n.settled() {
		lines = append(lines, n.inTerminal(mattermost))
	}
	a.Text = strings.Join(lines, "\n")
	return json.Marshal(struct {
		Text        string       `json:"text"`
		Attachments []attachment `json:"attachments"`
	}{n.title(), []attachment{a}})
}

// forNtfy is for a server of ntfy, which takes JSON at its root. A button has the app send a POST to the link.
func (n *chatMessage) forNtfy(to string) ([]byte, error) {
	type action struct {
		Action  string            `json:"action"`
		Label   string            `json:"label"`
		URL     string            `json:"url"`
		Method  string            `json:"method,omitempty"`
		Headers map[string]string `json:"headers,omitempty"`
		Body    string            `json:"body,omitempty"`
		Clear   bool              `json:"clear,omitempty"`
	}
	lines := n.lines(plain)
	message := struct {
		Topic   string   `json:"topic"`
		Title   string   `json:"title"`
		Message string   `json:"message"`
		Click   string   `json:"click,omitempty"`
		Actions []action `json:"actions,omitempty"`
		Quiet   int      `json:"priority,omitempty"`
	}{Title: n.title(), Click: n.link}
	_, message.Topic = ntfyServer(to)
	if n.link != "" {
		for _, c := range []choice{allowHour, deny} { // a notification has three buttons at most
			form := url.Values{}
			for name, value := range c.terms {
				form.Set(name, value)
			}
			message.Actions = append(message.Actions, action{"http", c.name, n.link, "POST", map[string]string{"Content-Type": "application/x-www-form-urlencoded"}, form.Encode(), true})
		}
		message.Actions = append(message.Actions, action{Action: "view", Label: "More answers", URL: n.link})
	}
	if n.settled() {
		message.Quiet = 2 // low: no sound
	} else {
		lines = append(lines, n.inTerminal(plain))
	}
	message.Message = strings.Join(lines, "\n")
	return json.Marshal(message)
}

// ntfyServer splits the URL of a topic.
func ntfyServer(to string) (server, topic string) {
	i := strings.LastIndexByte(to, '/')
	return to[:i+1], to[i+1:]
}
