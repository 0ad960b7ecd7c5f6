# Addresses. What is no address is an error, never "not contained".
# The functions are written as net.NAME because "contains" is a keyword.
package egressd

# class is known to egressd alone, which has the registries. Tests that other
# tools run replace it: … with data.egressd.net.class as "private".
net.class(address) := to_number(sprintf("the class of %v is known to egressd alone", [address]))

# contains holds where the address lies in the prefix, IPv4-mapped or not.
net.contains(prefix, address) := data.egressd.cidr.has(prefix, address)

# reaches is contains, and under egressd holds as well where a translator or a
# tunnel would carry the address into the prefix.
net.reaches(prefix, address) := data.egressd.cidr.has(prefix, address)

# any holds where one of the addresses lies in one of the prefixes.
default net.any(_, _) := false

net.any(prefixes, addresses) if {
	some prefix in data.egressd.cidr.list(prefixes)
	some address in data.egressd.cidr.list(addresses)
	data.egressd.cidr.has(prefix, address)
}
