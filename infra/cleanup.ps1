#Requires -Version 7.2
<#
.SYNOPSIS
    Deletes what create.ps1 has made, with all jobs and their history. It asks first.
.DESCRIPTION
    A resource group that create.ps1 made is deleted with everything in it. In a group that was there before, only the
    resources that bear its tag (made-by: celery-sqlbeat) are deleted, and the group stays.

    May be run again: what is gone already is no error.
.PARAMETER SubscriptionId
    The subscription.
.PARAMETER ResourceGroupName
    The resource group.
.PARAMETER Force
    Deletes without asking.
.EXAMPLE
    ./cleanup.ps1 -SubscriptionId $id -WhatIf
.EXAMPLE
    ./cleanup.ps1 -SubscriptionId $id -Force
.OUTPUTS
    None.
.LINK
    docs/dba.md
#>
[CmdletBinding(SupportsShouldProcess, ConfirmImpact = 'High')]
param(
    [Parameter(Mandatory)]
    [guid] $SubscriptionId,

    [ValidatePattern('^[\w().-]{1,90}$')]
    [string] $ResourceGroupName = 'cristp-reltaskexec',

    [switch] $Force
)

Set-StrictMode -Version Latest
$ErrorActionPreference = 'Stop'

. (Join-Path $PSScriptRoot 'parts/context.ps1')

if ($Force -and -not $PSBoundParameters.ContainsKey('Confirm')) {
    $ConfirmPreference = 'None'
}
# Dependent resources first: an endpoint and a link of a zone keep the server and the zone.
$order = @(
    'Microsoft.Network/privateEndpoints'
    'Microsoft.Network/privateDnsZones/virtualNetworkLinks'
    'Microsoft.Network/privateDnsZones'
    'Microsoft.Sql/servers/databases'
    'Microsoft.Sql/servers'
    'Microsoft.ManagedIdentity/userAssignedIdentities'
)

Assert-Command -Name 'Connect-AzAccount', 'Get-AzResource', 'Remove-AzResourceGroup' -Module 'Az'
Select-Subscription -SubscriptionId $SubscriptionId

$group = Get-AzResourceGroup -Name $ResourceGroupName -ErrorAction SilentlyContinue
if (-not $group) {
    Write-Verbose "There is no resource group $ResourceGroupName in this subscription: nothing to do."
    return
}
$isOurs = $group.Tags -and $group.Tags['made-by'] -eq $madeBy['made-by']
if ($isOurs) {
    $names = @(Get-AzResource -ResourceGroupName $ResourceGroupName | ForEach-Object { $_.Name }) -join ', '
    if ($PSCmdlet.ShouldProcess("$ResourceGroupName ($names)", 'Delete the resource group and all that is in it')) {
        Remove-AzResourceGroup -Name $ResourceGroupName -Force -Confirm:$false | Out-Null
    }
    return
}
$made = Get-AzResource -ResourceGroupName $ResourceGroupName -Tag $madeBy
foreach ($resource in $made | Sort-Object -Property { [array]::IndexOf($order, $_.ResourceType) }) {
    if ($PSCmdlet.ShouldProcess("$($resource.Name) ($($resource.ResourceType))", 'Delete')) {
        Remove-AzResource -ResourceId $resource.ResourceId -Force -Confirm:$false | Out-Null
    }
}
