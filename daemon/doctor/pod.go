package doctor

import (
	"fmt"
	"slices"

	"github.com/egressd/egressd/sandbox/rules"
)

// PodUser is the number of the user who egressd is in its image.
const PodUser = 65532

// Pod are about this container: whether what runs in it is held by the rules of
// pod-init, which let the user of egressd, with the number uid, pass.
func Pod(uid uint32) []Finding {
	p, err := rules.ReadPrivileges()
	if err != nil {
		return []Finding{{"pod", err.Error(), "a container with /proc"}}
	}
	return append(privilegeFindings(p, uid), sightFinding(uid), PodRules())
}

func privilegeFindings(p rules.Privileges, uid uint32) []Finding {
	const check = "pod"
	all := []Finding{{Check: check, Says: "neither root nor egressd's user"}}
	if slices.Contains(p.UIDs, 0) || slices.Contains(p.UIDs, uid) {
		all[0] = Finding{check, fmt.Sprintf("it is root or user %d, whom the rules let pass or who may become that user", uid), "securityContext: {runAsNonRoot: true, runAsUser: 1000}"}
	}
	caps := Finding{Check: check, Says: "no capabilities"}
	if p.Capabilities != 0 {
		caps = Finding{check, fmt.Sprintf("it has or can get capabilities (%#x): with SETUID it becomes egressd's user, with NET_RAW or NET_ADMIN it sends past the rules", p.Capabilities), "securityContext: {capabilities: {drop: [ALL]}}"}
	}
	gain := Finding{Check: check, Says: "no new privileges"}
	if p.NewPrivileges {
		gain = Finding{check, "programs with set-user-ID or file capabilities give it privileges", "securityContext: {allowPrivilegeEscalation: false}"}
	}
	calls := Finding{Check: check, Says: "system calls are filtered"}
	if p.UnfilteredCall {
		calls = Finding{check, "its system calls are not filtered", "securityContext: {seccompProfile: {type: RuntimeDefault}}"}
	}
	return append(all, caps, gain, calls)
}

func sightFinding(uid uint32) Finding {
	seen, err := rules.SeesProcessOf(uid)
	switch {
	case err != nil:
		return Finding{"pod", err.Error(), "a container with /proc"}
	case seen:
		return Finding{"pod", "it sees egressd's processes", "shareProcessNamespace: false, hostPID: false"}
	}
	return Finding{Check: "pod", Says: "egressd's processes are out of sight"}
}

// PodRules tries whether the rules of pod-init hold. One empty datagram to an address that
// nobody has leaves where they do not.
func PodRules() Finding {
	left, err := rules.TryDatagram()
	switch {
	case err != nil:
		return Finding{"pod", "whether the rules hold cannot be tried: " + err.Error(), "egressd pod-init, in an init container"}
	case left:
		return Finding{"pod", "a datagram left: there are no rules, or they do not hold", "egressd pod-init, in an init container before this one"}
	}
	return Finding{Check: "pod", Says: "a datagram to nowhere is refused"}
}
