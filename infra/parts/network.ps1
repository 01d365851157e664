# From where the server can be reached: through its firewall, or by a private endpoint only.
Set-StrictMode -Version Latest

$rulePrefix = 'sqlbeat-'  # rules of other names are somebody else's, and stay
$dnsZone = 'privatelink.database.windows.net'

function Confirm-Firewall {
    <#
    .SYNOPSIS
        Lets the named addresses in, and takes away rules of this script for addresses that are no longer named.
    #>
    [CmdletBinding(SupportsShouldProcess)]
    param(
        [Parameter(Mandatory)] [string] $ResourceGroupName,
        [Parameter(Mandatory)] [string] $ServerName,
        [ipaddress[]] $AllowIpAddress = @(),
        [switch] $AllowAzureServices
    )
    $server = @{ ResourceGroupName = $ResourceGroupName; ServerName = $ServerName }
    # 0.0.0.0 stands for everything inside of Azure.
    $addresses = @($AllowIpAddress | ForEach-Object { "$_" }) + @(if ($AllowAzureServices) { '0.0.0.0' })
    $found = @(Get-AzSqlServerFirewallRule @server -ErrorAction SilentlyContinue |
            Where-Object { $_.FirewallRuleName.StartsWith($rulePrefix) })
    $open = @($found | ForEach-Object { $_.StartIpAddress })
    foreach ($address in $addresses | Where-Object { $_ -notin $open }) {
        if ($PSCmdlet.ShouldProcess($ServerName, "Let $address through the firewall")) {
            $rule = @{ FirewallRuleName = $rulePrefix + $address; StartIpAddress = $address; EndIpAddress = $address }
            New-AzSqlServerFirewallRule @server @rule | Out-Null
        }
    }
    foreach ($rule in $found | Where-Object { $_.StartIpAddress -notin $addresses }) {
        if ($PSCmdlet.ShouldProcess($ServerName, "Shut the firewall for $($rule.StartIpAddress)")) {
            Remove-AzSqlServerFirewallRule @server -FirewallRuleName $rule.FirewallRuleName -Force | Out-Null
        }
    }
}

function Confirm-PrivateEndpoint {
    <#
    .SYNOPSIS
        Gives the server an address in a subnet, and its name that address in the subnet's network.
    #>
    [CmdletBinding(SupportsShouldProcess)]
    param(
        [Parameter(Mandatory)] [string] $ResourceGroupName,
        [Parameter(Mandatory)] [string] $ServerName,
        [Parameter(Mandatory)] [string] $Location,
        [Parameter(Mandatory)] [string] $SubnetId
    )
    $group = @{ ResourceGroupName = $ResourceGroupName }
    $endpoint = "$ServerName-endpoint"
    $network = $SubnetId -replace '/subnets/[^/]+$', ''
    if (-not (Get-AzPrivateEndpoint @group -Name $endpoint -ErrorAction SilentlyContinue) -and
        $PSCmdlet.ShouldProcess($endpoint, "Create a private endpoint in $SubnetId")) {
        $target = (Get-AzSqlServer @group -ServerName $ServerName).ResourceId
        $link = New-AzPrivateLinkServiceConnection -Name $endpoint -PrivateLinkServiceId $target -GroupId 'sqlServer'
        $subnet = Get-AzVirtualNetworkSubnetConfig -ResourceId $SubnetId
        $new = @{ Name = $endpoint; Location = $Location; Subnet = $subnet; PrivateLinkServiceConnection = $link; Tag = $madeBy }
        New-AzPrivateEndpoint @group @new | Out-Null
    }
    $zone = Get-AzPrivateDnsZone @group -Name $dnsZone -ErrorAction SilentlyContinue
    if (-not $zone -and $PSCmdlet.ShouldProcess($dnsZone, 'Create the private DNS zone')) {
        $zone = New-AzPrivateDnsZone @group -Name $dnsZone -Tag $madeBy
    }
    $linkName = "$ServerName-link"
    if (-not (Get-AzPrivateDnsVirtualNetworkLink @group -ZoneName $dnsZone -Name $linkName -ErrorAction SilentlyContinue) -and
        $PSCmdlet.ShouldProcess($dnsZone, "Link the zone to $network")) {
        $new = @{ ZoneName = $dnsZone; Name = $linkName; VirtualNetworkId = $network; Tag = $madeBy }
        New-AzPrivateDnsVirtualNetworkLink @group @new | Out-Null
    }
    $inEndpoint = $group + @{ PrivateEndpointName = $endpoint; Name = 'default' }
    if (-not (Get-AzPrivateDnsZoneGroup @inEndpoint -ErrorAction SilentlyContinue) -and
        $PSCmdlet.ShouldProcess($endpoint, "Enter the endpoint into $dnsZone")) {
        $config = New-AzPrivateDnsZoneConfig -Name $dnsZone -PrivateDnsZoneId $zone.ResourceId
        New-AzPrivateDnsZoneGroup @inEndpoint -PrivateDnsZoneConfig $config | Out-Null
    }
}
