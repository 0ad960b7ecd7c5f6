package peers

import (
	"fmt"
	"strings"
)

// readHardenRunner reads the inputs of step-security/harden-runner: a workflow with one such step, or the inputs alone.
func readHardenRunner(r *reading, text []byte) error {
	top, err := parseYAML(text)
	if err != nil {
		return err
	}
	if _, jobs := top["jobs"]; jobs {
		if top, err = hardenRunnerStep(top); err != nil {
			return err
		}
	} else if with, ok := top["with"]; ok {
		if top, err = objectOf(with, "with is no mapping"); err != nil {
			return err
		}
	}
	mode, endpoints := "block", ""
	if err := top.takeAll(map[string]any{"egress-policy": &mode, "allowed-endpoints": &endpoints}); err != nil {
		return err
	}
	r.left(top.keys("")...)
	switch mode {
	case "audit":
		r.open = true
		return nil
	case "block":
	default:
		return fmt.Errorf("egress-policy %q is neither audit nor block", mode)
	}
	for _, text := range strings.Fields(endpoints) {
		host, ports, ok := cutPort(text)
		if !ok {
			return fmt.Errorf("%q is no host with a port", text)
		}
		if ports == nil {
			ports = []span{port(443)}
		}
		s, err := hostScope(host, anyDepth)
		if err != nil {
			return err
		}
		r.allow(text, s, clause{ports: ports})
	}
	return nil
}

// hardenRunnerStep finds the inputs of the only such step of a workflow.
func hardenRunnerStep(workflow object) (object, error) {
	var jobs map[string]struct {
		Steps []struct {
			Uses string
			With object
		}
	}
	if err := workflow.take("jobs", &jobs); err != nil {
		return nil, err
	}
	var found []object
	for _, job := range sortedKeys(jobs) {
		for _, step := range jobs[job].Steps {
			if strings.HasPrefix(step.Uses, "step-security/harden-runner@") {
				found = append(found, step.With)
			}
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("it has %d steps of step-security/harden-runner; give a file with the inputs of one", len(found))
	}
	if found[0] == nil {
		return object{}, nil
	}
	return found[0], nil
}
