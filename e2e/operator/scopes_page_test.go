package operator

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/egressd/egressd/e2e/world"
)

// TestThePageAnswersAListAtOnce: the questions that are marked, while the one that was answered in a terminal goes, also under the mouse.
func TestThePageAnswersAListAtOnce(t *testing.T) {
	d := world.Start(t, world.WithAdmin(world.AdminSocket, "ask: [\"*.allowed.test\"]\nlimits: {ask_wait: 1s}\n"))
	ids := map[string]string{}
	for _, host := range []string{"a.allowed.test", "b.allowed.test", "curl.allowed.test"} {
		statusOf(t, d, "http://"+host+"/")
		ids[host] = isAsked(t, d, 0, host, "").ID
	}
	link, _ := startPageOf(t, d)
	ctx := browserIn(t, d.World.Gateway)
	base := open(t, ctx, link)
	waitFor(t, ctx, "three questions", base+"/questions", `document.querySelectorAll(".question").length == 3`)
	do(t, ctx, chromedp.Click(`.question[data-key="`+ids["curl.allowed.test"]+`"] input[name=pick]`, chromedp.ByQuery))
	waitFor(t, ctx, "the mouse on the list", "", `document.querySelector('[data-live="questions"]').matches(":hover")`)
	answers(t, d, "answer", ids["a.allowed.test"], "no")
	waitFor(t, ctx, "the answered question gone", "", `!document.querySelector('.question[data-key="`+ids["a.allowed.test"]+`"]')`)
	waitFor(t, ctx, "the mark still there", "", `document.querySelector('.question[data-key="`+ids["curl.allowed.test"]+`"] input[name=pick]').checked`)
	do(t, ctx, chromedp.Click(`#all button[value=approve]`, chromedp.ByQuery))
	waitFor(t, ctx, "the word that one was answered", "", `document.querySelector(".notice[role=status]")?.textContent.includes("1 question answered")`)
	want := map[string]string{"a.allowed.test": "rejected", "b.allowed.test": "pending", "curl.allowed.test": "approved"}
	for _, q := range questions(t, d) {
		if q.State != want[q.Host] {
			t.Errorf("%s is %s, want %s", q.Host, q.State, want[q.Host])
		}
	}
}

// A finger answers a question in one way, and returns the steps that a person takes: a command, a key, a link or a button each.
type finger func(host, id string) (steps int)

// TestFromTheDenialToTheRule measures how long an agent is held up, from its denial to the request that passes, by a person who takes no
// time: for an hour, and for good.
func TestFromTheDenialToTheRule(t *testing.T) {
	r := newChatRoom(t, "slack", "allow: [tool.test]\n"+twoSandboxes)
	d := r.d
	d.Edit(t, strings.Replace(chatPolicy("slack", "allow: [tool.test]\n"+twoSandboxes), "notify: {", "notify: {for_good: true, ", 1))
	link, _ := startPageOf(t, d)
	ctx := browserIn(t, d.World.Gateway)
	base := open(t, ctx, link)
	button := func(id, name string) string {
		return fmt.Sprintf(`[...document.querySelectorAll('.question[data-key="%s"] button, .question[data-key="%s"] a')].find(e => e.textContent.startsWith("%s"))`, id, id, name)
	}
	click := func(what, element string) {
		waitFor(t, ctx, what, "", "!!("+element+")")
		do(t, ctx, chromedp.Evaluate("("+element+").click(); 0", nil))
	}
	show := func() { do(t, ctx, chromedp.Navigate(base+"/questions")) }
	digest := func(text string) string {
		_, text, _ = strings.Cut(text, `name="save" value="`)
		text, _, _ = strings.Cut(text, `"`)
		return text
	}
	for _, row := range []struct {
		name  string
		host  string
		ready func()
		does  finger
	}{
		{name: "terminal, for an hour", host: "a.allowed.test", does: func(_, id string) int {
			answers(t, d, "answer", id, "yes")
			return 1
		}},
		{name: "terminal, for good", host: "b.allowed.test", does: func(_, id string) int {
			atTerminal(t, d, "y", nil, "answer", id, "yes", "--for", "good")
			return 2
		}},
		{name: "page, for an hour", host: "c.allowed.test", ready: show, does: func(_, id string) int {
			click("the button", button(id, "Approve for a time"))
			return 1
		}},
		{name: "page, for good", host: "curl.allowed.test", ready: show, does: func(_, id string) int {
			click("the link", button(id, "For good"))
			click("the change", `document.querySelector(".panel button.primary")`)
			return 2
		}},
		{name: "chat, for an hour", host: "evil.test", does: func(host, _ string) int {
			return r.allows(t, r.message(t, host))
		}},
		{name: "chat, for good", host: "h.allowed.test", does: func(host, _ string) int {
			to := linkIn(t, r.message(t, host))
			_, text := r.post(t, to, formType, "answer=yes&save=look")
			if status, text := r.post(t, to, formType, "answer=yes&save="+digest(text)); status != http.StatusOK {
				t.Errorf("%d %s", status, text)
			}
			return 3
		}},
	} {
		if row.ready != nil {
			row.ready()
		}
		passed := make(chan struct{})
		go func() {
			out, _ := d.Shell(t.TempDir(), "", strings.ReplaceAll(agent, "a.allowed.test", row.host))
			if !strings.HasPrefix(out, "approved\n200\n403") {
				t.Errorf("%s: the agent got %s", row.name, out)
			}
			close(passed)
		}()
		began := time.Now()
		q := isAsked(t, d, 0, row.host, "/x")
		asked := time.Now()
		steps := row.does(row.host, q.ID)
		<-passed
		t.Logf("%s: %d steps, %.1f s from the denial to the request that passes, %.1f s of them after it was asked", row.name, steps, time.Since(began).Seconds(), time.Since(asked).Seconds())
		if time.Since(began) > 30*time.Second {
			t.Errorf("%s takes too long", row.name)
		}
	}
}
