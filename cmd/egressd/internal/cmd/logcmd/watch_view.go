package logcmd

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/egressd/egressd/cmd/egressd/internal/cli"
	"github.com/egressd/egressd/internal/printable"
	"github.com/egressd/egressd/internal/quantity"
)

// watchFrame is the number of lines around the rows.
const watchFrame = 3

func (w *watch) View() tea.View {
	v := tea.NewView(w.screen())
	v.AltScreen = true
	return v
}

func (w *watch) screen() string {
	if w.width < 20 || w.height <= watchFrame {
		return "egressd: the window is too small"
	}
	var b strings.Builder
	line := func(text string) { b.WriteString(text + "\n") }
	line(w.colours.Bold(w.fit("egressd watch  " + w.state())))
	switch room := w.height - watchFrame; {
	case w.text != nil:
		for i := range room {
			if n := w.from + i; n < len(w.text) {
				line(w.text[n])
			} else {
				line("")
			}
		}
	default:
		line(w.fit(w.columns(" ", "COUNT", "DESTINATION", "WHO", "WHY", "LAST")))
		room--
		first := max(0, min(w.at-room/2, len(w.rows)-room))
		for i := range room {
			if n := first + i; n < len(w.rows) {
				line(w.row(w.rows[n], n == w.at))
			} else {
				line("")
			}
		}
	}
	line(w.fit(printable.Text(w.said)))
	b.WriteString(w.fit(w.prompt()))
	return b.String()
}

func (w *watch) state() string {
	text := strconv.FormatInt(w.progress.Next, 10) + " records"
	switch {
	case w.progress.Err != nil:
		text = "the log cannot be read further: " + printable.Text(w.progress.Err.Error())
	case !w.progress.CaughtUp:
		text += ", reading"
	}
	if len(w.words) > 0 {
		text += "  filter: " + printable.Text(strings.Join(w.words, " "))
	}
	return text
}

func (w *watch) prompt() string {
	switch {
	case w.typed != nil:
		return "filter: " + printable.Text(*w.typed) + "_"
	case w.act != nil:
		return printable.Text(w.confirm) + "? y/n"
	case w.text != nil:
		return "up and down scroll, any other key goes back"
	default:
		return "/ filter  w why  a allow  d deny  q quit"
	}
}

func (w *watch) row(r *watchRow, here bool) string {
	cursor := " "
	if here {
		cursor = ">"
	}
	if q := r.question; q != nil {
		text := w.fit(cursor + "? " + printable.Text("waits: "+questionOf(q)+", rule "+q.Rule))
		return w.paint(text, "ask", here)
	}
	g := r.group
	text := w.columns(cursor, strconv.FormatInt(g.Count, 10), cli.CutHost(cli.Cell(g.Destination)), cli.Cell(g.Who), cli.Cell(g.Why), quantity.Clock(g.Last, time.Now()))
	mark := map[string]string{"allow": "✓", "ask": "?"}[g.Action]
	if mark == "" {
		mark = "✗"
	}
	return w.paint(w.fit(string([]rune(text)[:1])+mark+string([]rune(text)[2:])), g.Action, here)
}

// paint colours a row by its verdict, unless NO_COLOR forbids it. The mark tells the verdict without colours, and > the row
// with the cursor.
func (w *watch) paint(text, action string, here bool) string {
	if here {
		return w.colours.Paint("7", text)
	}
	return w.colours.Paint(map[string]string{"allow": "32", "ask": "35"}[action]+map[bool]string{true: "31"}[action != "allow" && action != "ask"], text)
}

// columns lays out a row for the width of the window. The destination gets the space that is left.
func (w *watch) columns(cursor, count, destination, who, why, last string) string {
	const countWide, whoWide, whyWide, lastWide, gaps = 6, 16, 16, 8, 7
	wide := max(12, w.width-countWide-whoWide-whyWide-lastWide-gaps)
	return fmt.Sprintf("%s  %*s %-*s %-*s %-*s %*s", cursor, countWide, cli.Cut(count, countWide), wide, cli.Cut(destination, wide),
		whoWide, cli.Cut(who, whoWide), whyWide, cli.Cut(why, whyWide), lastWide, cli.Cut(last, lastWide))
}

func (w *watch) fit(text string) string { return cli.Cut(text, w.width) }
