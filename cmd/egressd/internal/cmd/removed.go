package cmd

import (
	"fmt"
	"strings"

	"github.com/egressd/egressd/internal/hint"
)

// removedCommands says of commands that egressd had what to type instead.
var removedCommands = map[string]string{
	"watch":     "egressd log -f, which follows the log in a terminal, or egressd ui, which shows it in a browser",
	"ps":        "egressd status --connections",
	"grants":    "egressd allow --list, which lists temporary rules, or egressd allow --undo ID",
	"questions": "egressd answer, which lists what waits for a person",
	"approve":   "egressd answer ID yes",
	"reject":    "egressd answer ID no",
	"runs":      "egressd log --runs",
	"selftest":  "egressd doctor --escapes",
	"suggest":   "egressd policy suggest",
	"replay":    "egressd policy replay FILE",
	"trust":     "egressd policy trust DIR",

	"grants revoke": "egressd allow --undo ID, or --undo all",

	"ca show": "egressd ca, or egressd ca --pem",

	"log stats":      "egressd log --summary, for totals, or egressd log by host, by hour, by proc and others",
	"log summary":    "egressd log --summary, or --markdown for a CI job",
	"log pivot":      "egressd log by FIELD,FIELD",
	"log key":        "egressd log verify --print-key",
	"log checkpoint": "egressd log verify --print-checkpoint",
	"log prove":      "egressd log verify --prove ID, or --proof FILE --key KEY to check a proof",
	"log sinks":      "egressd status --sinks",

	"policy explain": "egressd check -v URL",
	"policy status":  "egressd policy show",
	"policy presets": "egressd policy show presets, or egressd policy show NAME",
	"policy init":    "egressd init rego DIR",
	"policy keygen":  "egressd policy build --keygen NAME",
	"policy sign":    "egressd policy build --sign KEY BUNDLE",
	"policy library": "egressd policy build --library DIR PATH",
}

// removed returns an error that says what to type, if a command line begins with a command that egressd had.
func removed(args []string) error {
	for n := min(2, len(args)); n > 0; n-- {
		name := strings.Join(args[:n], " ")
		if instead := removedCommands[name]; instead != "" {
			return hint.Misused(fmt.Errorf("there is no command %q", name), instead)
		}
	}
	return nil
}
